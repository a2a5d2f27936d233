"""Deep generative replay against a step written out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from remnant.data import Split
from remnant.experiments.settings import resolve
from remnant.methods import Finetune
from remnant.methods.dgr import DGR
from remnant.methods.parts.generative import new_generator
from remnant.models import Network, build
from remnant.options import OptionError

OPTIONS: dict[str, Any] = {"hidden": (7,), "latent": 2, "generator_lr": 0.01}


def network(classes: int | Sequence[int]) -> Network:
    return build("mlp", input_shape=(6,), classes=classes, seed=3, hidden=(5, 4), bias=True).double()


def batches(task: int, count: int = 6, size: int = 4) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(task)
    x = torch.randn(count, size, 6, generator=g, dtype=torch.float64)
    return list(zip(x, torch.randint(0, 3, (count, size), generator=g), strict=True))


class SlowDGR:
    """One example after another, each with its weight, each under its own head; torch's own optimizers."""

    def __init__(self, method: DGR, lr: float) -> None:
        self.solver, self.generator = deepcopy(method.network), deepcopy(method.generator)
        self.sgd = torch.optim.SGD(self.solver.parameters(), lr=lr)
        self.adam = torch.optim.Adam(self.generator.parameters(), lr=0.01)
        self.remember()

    def remember(self) -> None:
        self.old_solver, self.old_generator = deepcopy(self.solver), deepcopy(self.generator)

    def step(self, x: Tensor, y: Tensor, task: int) -> None:
        new = 1 / (task + 1)
        eps = torch.randn(len(y), 2, dtype=torch.float64)
        parts = [(new, a, int(b), task) for a, b in zip(x, y, strict=True)]
        generated = []
        if task > 0:  # the order in which random numbers are drawn: the new batch's codes, the replay's, its codes
            generated = list(self.old_generator.decode(torch.randn(len(y), 2, dtype=torch.float64)).detach())
            eps = torch.cat([eps, torch.randn(len(y), 2, dtype=torch.float64)])
        parts += [(1 - new, a, *self.label(a, task)) for a in generated]
        solver_loss = sum(w * self.solver_loss(a, b, t) for w, a, b, t in parts) / len(y)
        inputs = torch.stack([a for _, a, _, _ in parts])
        weights = torch.tensor([w for w, *_ in parts])
        generator_loss = (weights * self.bounds(inputs, eps)).sum() / len(y)
        for optimizer, loss in ((self.sgd, solver_loss), (self.adam, generator_loss)):
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

    def label(self, x: Tensor, tasks: int) -> tuple[int, int]:
        """The class of which the old solver is surest, and its task."""
        known = range(tasks if self.solver.multi_head else 1)
        scores = {(b, t): s for t in known for b, s in enumerate(self.old_solver(x[None], t)[0].tolist())}
        return max(scores, key=lambda place: scores[place])

    def solver_loss(self, x: Tensor, label: int, task: int) -> Tensor:
        return F.cross_entropy(self.solver(x[None], task), torch.tensor([label]))

    def bounds(self, x: Tensor, eps: Tensor) -> Tensor:
        mean, log_variance = self.generator.encode(x)
        error = (self.generator.decode(mean + log_variance.exp().sqrt() * eps) - x).square().sum(1) / 2
        return (error + (mean**2 + log_variance.exp() - 1 - log_variance).sum(1) / 2) / 6


@pytest.mark.parametrize("classes", [3, (3, 4, 3)], ids=["one head", "heads"])
def test_three_tasks_weigh_new_and_replayed_examples_as_the_paper_does(classes: Any) -> None:
    method = DGR(network(classes), lr=0.125, **OPTIONS)
    slow = SlowDGR(method, 0.125)
    for task in range(3):
        method.start(task)
        for x, y in batches(task):
            state = torch.get_rng_state()
            method.step(x, y)
            torch.set_rng_state(state)
            slow.step(x, y, task)
        for ours, theirs in ((method.network, slow.solver), (method.generator, slow.generator)):
            for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
                assert torch.allclose(p, q, rtol=1e-6, atol=1e-9)
        method.finish(task, Split.of(x, y))
        slow.remember()


def test_the_past_is_what_ended_the_last_task() -> None:
    method = DGR(network(3), lr=0.1, **OPTIONS)
    method.start(0)
    method.step(*batches(0)[0])
    method.finish(0, Split.of(*batches(0)[0]))
    kept = [p.clone() for old in (method.old_generator, method.old_solver) for p in old.parameters()]
    method.start(1)
    for x, y in batches(1):
        method.step(x, y)
    now = [p for old in (method.old_generator, method.old_solver) for p in old.parameters()]
    assert all(torch.equal(p, q) for p, q in zip(kept, now, strict=True))
    assert not all(torch.equal(p, q) for p, q in zip(kept, method.generator.parameters(), strict=False))
    assert method.nbytes == sum(p.nbytes for p in method.generator.parameters())


def test_it_remembers_classes_that_fine_tuning_forgets() -> None:
    """Three clusters, one after another, under one head."""
    generator = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(3, 6, generator=generator, dtype=torch.float64)
    accuracy = {}
    for kind in (Finetune, DGR):
        method = kind(network(3), lr=0.1, **(OPTIONS if kind is DGR else {}))
        for task in range(3):
            method.start(task)
            for _ in range(300):
                x = centres[task] + 0.3 * torch.randn(16, 6, generator=generator, dtype=torch.float64)
                method.step(x, torch.full((16,), task))
            method.finish(task, Split.of(x, torch.full((16,), task)))
        x = centres.repeat_interleave(50, 0) + 0.3 * torch.randn(150, 6, generator=generator, dtype=torch.float64)
        right = method.logits(x, 0).argmax(1) == torch.arange(3).repeat_interleave(50)
        accuracy[kind.name] = right.double().mean().item()
    assert accuracy["finetune"] < 0.7
    assert accuracy["dgr"] > 0.9


def test_a_generator_starts_with_random_numbers_of_its_own_device() -> None:
    """On a GPU a run's seed sets that device's numbers alone. The meta device stands for the GPU here."""
    before = torch.random.get_rng_state()
    generator = new_generator(network(3).to("meta"), (7,), 2, 1.0)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert {(p.device.type, p.dtype) for p in generator.parameters()} == {("meta", torch.float64)}


def test_settings_are_checked() -> None:
    for wrong in ("latent=0", "variance=0", "generator_lr=0"):
        with pytest.raises(OptionError, match="takes a"):
            resolve("mnist-incremental", "dgr", [wrong])
