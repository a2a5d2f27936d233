"""MEGA's two mixtures against slow searches for them, and its steps against a loop with the paper's `if`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from remnant.data import Split
from remnant.experiments.settings import resolve
from remnant.methods import MEGA1, MEGA2
from remnant.methods.mega import turned
from remnant.models import Network, build
from remnant.options import OptionError

losses = st.floats(0.01, 10)


def pair(length: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    gradient = torch.randn(length, generator=g, dtype=torch.float64)
    return gradient, torch.randn(length, generator=g, dtype=torch.float64) - gradient


@given(st.integers(2, 50), st.integers(0, 10**6), losses, losses)
def test_mega_2_is_the_best_of_many_angles_between_the_gradients(
    length: int, seed: int, new: float, old: float
) -> None:
    gradient, reference = pair(length, seed)
    step = turned(gradient, reference, torch.tensor(new), torch.tensor(old))
    assert step.norm() == pytest.approx(gradient.norm())
    across = reference - (reference @ gradient) / (gradient @ gradient) * gradient
    angles = torch.linspace(0, torch.pi / 2, 2001, dtype=torch.float64)[:, None]
    tried = angles.cos() * gradient + angles.sin() * across / across.norm() * gradient.norm()

    def aim(steps: Tensor) -> Tensor:
        return new * F.cosine_similarity(steps, gradient, dim=-1) + old * F.cosine_similarity(steps, reference, dim=-1)

    best = aim(tried).argmax()
    assert aim(step) >= aim(tried[best]) - 1e-12
    assert (step - tried[best]).norm() <= 2e-3 * gradient.norm()


@given(st.integers(2, 50), st.integers(0, 10**6))
def test_mega_2_leaves_the_gradient_if_the_memory_is_known_by_heart(length: int, seed: int) -> None:
    gradient, reference = pair(length, seed)
    assert torch.allclose(turned(gradient, reference, torch.tensor(1.0), torch.tensor(0.0)), gradient)


@pytest.mark.parametrize("scale", [0.0, 1.0, 3.0])
def test_mega_2_meets_no_nan_where_the_gradients_are_parallel_or_zero(scale: float) -> None:
    gradient = torch.randn(9)
    one = torch.tensor(1.0)
    assert torch.allclose(turned(gradient, scale * gradient, one, one), gradient, atol=1e-5)
    assert not turned(torch.zeros(9), gradient, one, one).any()
    assert turned(gradient, -gradient, one, 2 * one).isfinite().all()


def network(classes: Any) -> Network:
    return build("mlp", input_shape=(6,), classes=classes, seed=3, hidden=(5, 4), bias=True).double()


def data(task: int) -> Split:
    g = torch.Generator().manual_seed(task)
    return Split.of(torch.randn(32, 6, generator=g, dtype=torch.float64), torch.randint(0, 3, (32,), generator=g))


@pytest.mark.parametrize("sensitivity", [1e-3, 1.1], ids=["both", "one of them"])
@pytest.mark.parametrize("classes", [3, (3, 4, 3)], ids=["one head", "heads"])
def test_three_tasks_of_mega_1_are_the_papers_rule_with_its_if(classes: Any, sensitivity: float) -> None:
    ours, theirs = network(classes), network(classes)
    method = MEGA1(ours, lr=0.125, memory=12, memory_batch=1000, sensitivity=sensitivity)
    known = 0
    for task in range(3):
        split = data(task)
        method.start(task)
        for part in torch.arange(32).split(4):
            method.step(split.x[part], split.y[part])
            loss = F.cross_entropy(theirs(split.x[part], task), split.y[part])
            objective = loss
            if task:
                x, labels = method.memory.draw(1000)  # all of it
                tasks = [0] * len(labels) if classes == 3 else method.mixed.task_of[labels].tolist()
                y = labels - torch.tensor([0 if classes == 3 else (0, 3, 7)[t] for t in tasks])
                each = [F.cross_entropy(theirs(a[None], t), b[None]) for a, b, t in zip(x, y, tasks, strict=True)]
                reference = torch.stack(each).mean()
                if loss > sensitivity:
                    objective = loss + (reference / loss).detach() * reference
                else:
                    objective, known = reference, known + 1
            parameters = list(theirs.parameters())
            found = torch.autograd.grad(objective, parameters, allow_unused=True)
            with torch.no_grad():
                for p, g in zip(parameters, found, strict=True):
                    p -= 0.125 * (0 if g is None else g)
        method.finish(task, split)
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.allclose(p, q, rtol=1e-9, atol=1e-12)
    assert known == 0 if sensitivity < 1 else 0 < known < 16  # both sides of the rule were met


def test_the_first_task_is_plain_sgd_and_the_second_is_not() -> None:
    weights = []
    for kind in (MEGA1, MEGA2):
        method, plain = kind(network(3), lr=0.125, memory=12), network(3)
        split = data(0)
        method.start(0)
        method.step(split.x, split.y)
        gradients = torch.autograd.grad(F.cross_entropy(plain(split.x, 0), split.y), list(plain.parameters()))
        expected = [p.detach() - 0.125 * g for p, g in zip(plain.parameters(), gradients, strict=True)]
        assert all(torch.allclose(p, e) for p, e in zip(method.network.parameters(), expected, strict=True))
        torch.manual_seed(0)
        method.finish(0, split)
        method.start(1)
        method.step(data(1).x, data(1).y)
        weights.append(torch.cat([p.detach().flatten() for p in method.network.parameters()]))
        assert method.nbytes == 12 * (6 * 8 + 8)
    assert not torch.allclose(*weights)


def test_settings_are_checked() -> None:
    with pytest.raises(OptionError, match="takes a number"):
        resolve("pmnist", "mega-i", ["sensitivity=0"])
    with pytest.raises(OptionError, match="no such setting"):
        resolve("pmnist", "mega-ii", ["sensitivity=1"])
