"""Synaptic intelligence against its formula, with autograd on the whole objective and a path summed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_runs import transfer_of
from torch import Tensor

from remnant.data import Split
from remnant.experiments.settings import resolve
from remnant.methods import SI
from remnant.models import Network, build
from remnant.options import OptionError


def network(classes: int | Sequence[int] = (3, 4, 3)) -> Network:
    return build("mlp", input_shape=(6,), classes=classes, seed=3, hidden=(5, 4), bias=True).double()


def data(task: int) -> Split:
    g = torch.Generator().manual_seed(task)
    x = torch.randn(24, 6, generator=g, dtype=torch.float64)
    return Split.of(x, torch.randint(0, 3, (24,), generator=g))


class SlowSI:
    """SGD on the objective as it is written; the credit of every step is kept and summed when the task ends."""

    def __init__(self, net: Network, lr: float, c: float, xi: float) -> None:
        self.net, self.lr, self.c, self.xi = net, lr, c, xi
        self.shared = [p for name, p in net.named_parameters() if not name.startswith("heads.")]
        self.omega = [torch.zeros_like(p) for p in self.shared]
        self.last = [p.detach().clone() for p in self.shared]
        self.credits: list[list[Tensor]] = []

    def step(self, x: Tensor, y: Tensor, task: int) -> None:
        own = dict.fromkeys((*self.shared, *self.net.head_of(task).parameters()))
        loss = F.cross_entropy(self.net(x, task), y)
        plain = torch.autograd.grad(loss, self.shared, retain_graph=True)
        distances = [
            (o * (p - old).square()).sum() for o, p, old in zip(self.omega, self.shared, self.last, strict=True)
        ]
        whole = torch.autograd.grad(loss + self.c * torch.stack(distances).sum(), list(own))
        before = [p.detach().clone() for p in self.shared]
        with torch.no_grad():
            for p, g in zip(own, whole, strict=True):
                p -= self.lr * g
        moved = [p.detach() - b for p, b in zip(self.shared, before, strict=True)]
        self.credits.append([-g * m for g, m in zip(plain, moved, strict=True)])

    def finish(self) -> None:
        for n, p in enumerate(self.shared):
            fall = torch.stack([credit[n] for credit in self.credits]).sum(0)
            self.omega[n] = (self.omega[n] + fall / ((p.detach() - self.last[n]) ** 2 + self.xi)).clamp(min=0)
        self.last = [p.detach().clone() for p in self.shared]
        self.credits = []


def close(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-8, atol=1e-13) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("classes", [3, (3, 4, 3)], ids=["one head", "heads"])
def test_three_tasks_are_sgd_on_the_loss_with_the_penalty(classes: Any) -> None:
    ours, theirs = network(classes), network(classes)
    method = SI(ours, lr=0.125, strength=0.75, damping=0.25)  # a rate that float32 holds exactly
    slow = SlowSI(theirs, 0.125, 0.75, 0.25)
    for task in range(3):
        split = data(task)
        method.start(task)
        for part in torch.arange(24).split(4):
            method.step(split.x[part], split.y[part])
            slow.step(split.x[part], split.y[part], task)
        method.finish(task, split)
        slow.finish()
        assert close(list(ours.parameters()), list(theirs.parameters()))
        assert close(method.importance, slow.omega)
        assert all(o.min() >= 0 and o.max() > 0 for o in method.importance)
        assert not any(path.any() for path in method.path)
    assert method.nbytes == 3 * sum(p.nbytes for p in method.shared.values())


def test_small_steps_credit_the_weights_with_the_whole_fall_of_the_loss() -> None:
    """The path integral of the gradient is the difference of the loss between its ends."""
    method, split = SI(network(3), lr=0.01), data(0)
    method.start(0)
    first = method.loss(split.x, split.y)
    for _ in range(200):
        method.step(split.x, split.y)
    fall = (first - method.loss(split.x, split.y)).detach()
    assert fall > 0.01
    assert float(sum(path.sum() for path in method.path)) == pytest.approx(float(fall), rel=0.01)


def test_the_step_that_counts_is_the_optimizers() -> None:
    method, split = SI(network(3), lr=0.01), data(0)
    method.use_optimizer("adam")
    method.start(0)
    before = [p.detach().clone() for p in method.shared.values()]
    gradients = torch.autograd.grad(method.loss(split.x, split.y), list(method.shared.values()))
    method.step(split.x, split.y)
    moved = [p.detach() - b for p, b in zip(method.shared.values(), before, strict=True)]
    assert close(method.path, [-g * m for g, m in zip(gradients, moved, strict=True)])


def test_it_forgets_less_than_no_protection(tmp_path: Path) -> None:
    few = ("stream.tasks=2", "training.epochs=4")
    assert transfer_of("si", tmp_path, *few) > transfer_of("finetune", tmp_path, *few) + 0.03


def test_settings_are_checked() -> None:
    for wrong in ("strength=-1", "damping=0"):
        with pytest.raises(OptionError, match="takes a"):
            resolve("pmnist", "si", [wrong])
