"""The two memories of DGDMN: what a slot learns, what sleep replays, and who answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from remnant.data import Split
from remnant.experiments.settings import resolve
from remnant.methods import Finetune
from remnant.methods.dgdmn import DGDMN
from remnant.models import Network, build
from remnant.options import OptionError

OPTIONS: dict[str, Any] = {"slots": 2, "samples": 300, "sleep": 8, "hidden": (12,), "latent": 2, "memory_lr": 0.01}


def network(classes: int | Sequence[int]) -> Network:
    return build("mlp", input_shape=(6,), classes=classes, seed=3, hidden=(8,), bias=True).double()


CENTRES = 2 * torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def examples(task: int, count: int = 16) -> Split:
    """Examples of one class: a cluster."""
    return Split.of(CENTRES[task] + 0.3 * torch.randn(count, 6, dtype=torch.float64), torch.full((count,), task))


def learn(method: DGDMN, task: int, steps: int = 200, one_head: bool = True) -> None:
    method.start(task)
    for _ in range(steps):
        split = examples(task)
        method.step(split.x, split.y if one_head else torch.zeros_like(split.y))
    method.finish(task, split)


def accuracy(method: DGDMN, tasks: int) -> list[float]:
    with torch.no_grad():
        return [(method.logits(examples(t, 50).x, 0).argmax(1) == t).double().mean().item() for t in range(tasks)]


def test_all_classes_are_known_before_and_after_each_sleep() -> None:
    method = DGDMN(network(4), lr=0.1, **OPTIONS)
    for task in range(4):
        learn(method, task)
        assert min(accuracy(method, task + 1)) > 0.8
        assert method.consolidated == (0, 2, 2, 4)[task]


def test_a_task_trains_its_slot_and_nothing_else() -> None:
    method = DGDMN(network(4), lr=0.125, **OPTIONS)
    learn(method, 0, steps=3)
    before = {name: p.clone() for name, p in method.slots.state_dict().items()}
    long_term = [p.detach().clone() for p in method.long_term.parameters()]
    method.start(1)
    solver = network(4)
    solver.load_state_dict(method.memory_of(1).solver.state_dict())
    split = examples(1)
    method.step(split.x, split.y)
    theirs = Finetune(solver, lr=0.125)
    theirs.step(split.x, split.y)
    assert all(torch.equal(p, before[name]) for name, p in method.slots.state_dict().items() if name.startswith("0."))
    assert all(torch.equal(p, q) for p, q in zip(method.long_term.parameters(), long_term, strict=True))
    for p, q in zip(method.memory_of(1).solver.parameters(), solver.parameters(), strict=True):
        assert torch.allclose(p, q)  # plain SGD on the new task alone


def test_sleep_replays_every_task_equally_each_named_by_its_own_solver() -> None:
    method = DGDMN(network(4), lr=0.1, **OPTIONS)
    for task in range(3):
        learn(method, task)
    method.start(3)
    state = torch.get_rng_state()
    x, labels = method.replay()
    torch.set_rng_state(state)
    assert len(x) == len(labels) == 4 * 300
    old = method.generator.sample(2 * 300)
    assert torch.equal(x[:600], old)
    assert torch.equal(labels[:600], method.network(old).argmax(1))
    for task in (2, 3):
        own = method.memory_of(task)
        part = slice(300 * task, 300 * (task + 1))
        assert torch.equal(x[part], own.generator.sample(300))
        assert torch.equal(labels[part], own.solver(x[part]).argmax(1))
    assert 0.1 < (labels[:600] == 0).double().mean() < 0.9


def slow_logits(method: DGDMN, x: Tensor) -> Tensor:
    """One example after another."""
    candidates = [method.memory_of(t) for t in range(method.consolidated, method.learnt)]
    candidates += [method.long_term] if method.consolidated else []
    rows = []
    for example in x:
        mean, _ = zip(*(c.generator.encode(example[None]) for c in candidates), strict=True)
        errors = [F.mse_loss(c.generator.decode(m)[0], example).item() for c, m in zip(candidates, mean, strict=True)]
        rows.append(candidates[errors.index(min(errors))].solver(example[None])[0])
    return torch.stack(rows)


def test_the_memory_that_rebuilds_an_example_best_answers() -> None:
    method = DGDMN(network(4), lr=0.1, **OPTIONS)
    x = torch.cat([examples(task, 20).x for task in range(4)])
    for task in range(3):
        learn(method, task, steps=50)
        with torch.no_grad():
            assert torch.allclose(method.logits(x, 0), slow_logits(method, x))


def test_with_heads_the_task_says_which_memory_answers() -> None:
    method = DGDMN(network((2, 2, 2)), lr=0.1, **OPTIONS)
    for task in range(3):
        learn(method, task, steps=5, one_head=False)
    x = examples(0).x
    assert torch.equal(method.logits(x, 2), method.memory_of(2).solver(x, 2))
    for task in range(2):
        assert torch.equal(method.logits(x, task), method.network(x, task))


def test_settings_are_checked() -> None:
    for wrong in ("slots=0", "samples=0", "sleep=0", "memory_lr=0"):
        with pytest.raises(OptionError, match="takes a"):
            resolve("mnist-incremental", "dgdmn", [wrong])
