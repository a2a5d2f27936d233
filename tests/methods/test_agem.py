"""Averaged GEM against its formula."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from remnant.data import Split, Stream
from remnant.experiments.settings import resolve
from remnant.methods import AGEM
from remnant.methods.agem import without_conflict
from remnant.models import Network, build
from remnant.options import OptionError


def network(classes: int | Sequence[int], **options: Any) -> Network:
    return build(
        "mlp", input_shape=(6,), classes=classes, seed=3, **{"hidden": (5, 4), "bias": True, **options}
    ).double()


def data(task: int, count: int = 32) -> Split:
    g = torch.Generator().manual_seed(task)
    x = torch.randn(count, 6, generator=g, dtype=torch.float64)
    return Split.of(x, torch.randint(0, 3, (count,), generator=g))


@given(st.integers(1, 200), st.floats(-1, 1), st.integers(0, 10**6), st.sampled_from([torch.float32, torch.float64]))
def test_the_product_is_never_negative_after_the_projection(
    length: int, lean: float, seed: int, dtype: torch.dtype
) -> None:
    g = torch.Generator().manual_seed(seed)
    reference = torch.randn(length, generator=g, dtype=dtype)
    gradient = torch.randn(length, generator=g, dtype=dtype) + 10 * lean * reference
    step = without_conflict(gradient, reference)
    rounding = 10 * torch.finfo(dtype).eps * gradient.norm() * reference.norm()
    assert step @ reference >= -rounding
    if gradient @ reference >= rounding:
        assert torch.equal(step, gradient)
    elif gradient @ reference <= -rounding:  # the nearest on the other side: across, and no further
        assert abs(step @ reference) <= rounding
        wanted = gradient - (gradient @ reference) / (reference @ reference) * reference
        assert torch.allclose(step, wanted, rtol=1e-4, atol=1e-4 * float(gradient.norm()))


def test_a_reference_of_zero_changes_nothing() -> None:
    gradient = torch.randn(9)
    assert torch.equal(without_conflict(gradient, torch.zeros(9)), gradient)


@pytest.mark.parametrize("memory_batch", [5, 1000], ids=["drawn", "all"])
@pytest.mark.parametrize("classes", [3, (3, 4, 3)], ids=["one head", "heads"])
def test_three_tasks_are_the_papers_rule_with_its_if(classes: Any, memory_batch: int) -> None:
    ours, theirs = network(classes), network(classes)
    method = AGEM(ours, lr=0.125, memory=12, memory_batch=memory_batch)
    conflicts = 0
    for task in range(3):
        split = data(task)
        method.start(task)
        for part in torch.arange(32).split(4):
            state = torch.get_rng_state()
            method.step(split.x[part], split.y[part])
            after = torch.get_rng_state()
            torch.set_rng_state(state)
            gradient = slow_gradient(theirs, split.x[part], split.y[part], [task] * 4)
            if task:
                x, labels = method.memory.draw(memory_batch)
                tasks = [0] * len(labels) if classes == 3 else method.mixed.task_of[labels].tolist()
                y = labels - torch.tensor([0 if classes == 3 else (0, 3, 7)[t] for t in tasks])
                reference = slow_gradient(theirs, x, y, tasks)
                if gradient @ reference < 0:
                    gradient = gradient - (gradient @ reference) / (reference @ reference) * reference
                    conflicts += 1
            torch.set_rng_state(after)
            with torch.no_grad():
                for parameter, own in zip(theirs.parameters(), pieces(gradient, theirs), strict=True):
                    parameter -= 0.125 * own
        method.finish(task, split)
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.allclose(p, q, rtol=1e-9, atol=1e-12)
        assert method.nbytes == 12 * (6 * 8 + 8)
    assert 0 < conflicts < 16  # both sides of the rule were met


def test_the_streams_length_says_how_many_share_the_memory() -> None:
    stream = Stream.from_arrays([(data(t).x, torch.arange(32) % 3) for t in range(4)], head="single", classes=3)
    method = AGEM(network(3), lr=0.1, memory=22)
    assert method.curriculum(stream) is stream.tasks
    for task in range(4):
        method.start(task)
        method.finish(task, stream[task].train)
        assert method.memory.counts == [6, 6, 5, 5][: task + 1]


def slow_gradient(net: Network, x: Tensor, y: Tensor, tasks: list[int]) -> Tensor:
    losses = [F.cross_entropy(net(a[None], t), b[None]) for a, b, t in zip(x, y, tasks, strict=True)]
    found = torch.autograd.grad(torch.stack(losses).mean(), list(net.parameters()), allow_unused=True)
    return torch.cat(
        [
            torch.zeros_like(p).flatten() if g is None else g.flatten()
            for g, p in zip(found, net.parameters(), strict=True)
        ]
    )


def pieces(vector: Tensor, net: Network) -> list[Tensor]:
    parts = vector.split([p.numel() for p in net.parameters()])
    return [part.view_as(p) for part, p in zip(parts, net.parameters(), strict=True)]


def test_settings_are_checked() -> None:
    assert resolve("pmnist", "agem").stream["pixels"] == "unit"  # and GPM's are normalised
    assert "pixels" not in resolve("pmnist", "gpm").stream
    assert resolve("pmnist", "agem").options == {"lr": 0.1, "memory": 1000, "memory_batch": 256}
    for wrong in ("memory=0", "memory_batch=0"):
        with pytest.raises(OptionError, match="takes a whole number"):
            resolve("pmnist", "agem", [wrong])
