"""GEM: gradients per task against a loop, its step against SciPy's least squares, its constraints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls
from torch import Tensor

from remnant.data import Split
from remnant.experiments.settings import resolve
from remnant.methods import GEM
from remnant.methods.gem import CHUNK, NonNegativeQuadratic, gram, without_conflicts
from remnant.models import Network, build
from remnant.options import OptionError

CPU = torch.device("cpu")
NETWORKS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "mlp": ((6,), {"hidden": (5, 4), "bias": True}),
    "lenet": ((3, 12, 12), {"width": 2}),
    "alexnet": ((3, 19, 19), {"width": 2, "dropout": (0.0, 0.0)}),
    "resnet18": ((3, 16, 16), {"width": 2}),
}


def network(kind: str = "mlp", classes: int | Sequence[int] = 3, **options: Any) -> Network:
    shape, usual = NETWORKS[kind]
    return build(kind, input_shape=shape, classes=classes, seed=3, **{**usual, **options}).double()


def data(net: Network, task: int, count: int = 32) -> Split:
    g = torch.Generator().manual_seed(task)
    x = torch.randn(count, *net.input_shape, generator=g, dtype=torch.float64)
    return Split.of(x, torch.randint(0, 3, (count,), generator=g))


# --- the projected gradient -------------------------------------------------------------------------------------------


def projected(g: Tensor, G: Tensor, strength: float, ridge: float = 0.0) -> Tensor:
    return without_conflicts(g, G, strength, ridge, NonNegativeQuadratic(len(G), CPU))


@given(st.integers(1, 9), st.sampled_from([0.0, 0.5]), st.floats(-2, 2), st.integers(0, 10**6))
def test_every_constraint_holds_and_nothing_nearer_does_so(tasks: int, strength: float, lean: float, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    G = torch.randn(tasks, 30, generator=rng, dtype=torch.float64)
    g = torch.randn(30, generator=rng, dtype=torch.float64) - lean * G.mean(0)
    step = projected(g, G, strength)
    if (G @ g).min() >= 0:
        assert torch.equal(step, g)
        return
    size = g.norm() * G.norm()
    assert (G @ step).min() >= -1e-9 * size
    # Nearest to g + γ·Gᵀ1: no other point of the cone is at an angle under 90° from there.
    towards = g + strength * G.sum(0) - step
    assert abs(towards @ step) <= 1e-9 * size * (1 + strength * tasks)
    for _ in range(5):  # other points that keep every constraint
        other = torch.linalg.pinv(G) @ torch.rand(tasks, generator=rng, dtype=torch.float64)
        assert towards @ (other - step) <= 1e-9 * size * (1 + strength * tasks)
    v, _ = nnls(G.T.numpy(), -(g + strength * G.sum(0)).numpy())
    wanted = g + G.T @ torch.from_numpy(v + strength)
    assert torch.allclose(step, wanted, rtol=0, atol=1e-9 * float(size))


@given(st.integers(1, 9), st.sampled_from([0.0, 0.5]), st.sampled_from([1e-3, 1.0]), st.integers(0, 10**6))
def test_a_ridge_is_a_price_on_large_v(tasks: int, strength: float, ridge: float, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    G = torch.randn(tasks, 30, generator=rng, dtype=torch.float64)
    g = torch.randn(30, generator=rng, dtype=torch.float64) - G.mean(0)
    step = projected(g, G, strength, ridge)
    # ½vᵀ(GGᵀ + εI)v + gᵀGᵀv: least squares with rows √ε·v = 0 below the others.
    A = torch.cat([G.T, ridge**0.5 * torch.eye(tasks, dtype=torch.float64)])
    at_strength = torch.cat([g, torch.zeros(tasks, dtype=torch.float64)]) + strength * A.sum(1)
    v, _ = nnls(A.numpy(), -at_strength.numpy())
    wanted = g + G.T @ torch.from_numpy(v + strength) if (G @ g).min() < 0 else g
    assert torch.allclose(step, wanted, rtol=0, atol=1e-9 * float(g.norm() * G.norm()))


def test_in_float32_the_constraints_hold_to_rounding() -> None:
    G = torch.randn(9, 5000)
    g = torch.randn(5000) - G.sum(0)
    step = projected(g, G, 0.5)
    assert ((G @ step) / (G.norm(dim=1) * step.norm())).min() > -1e-5


@pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK, 3 * CHUNK + 17])
def test_the_gram_is_all_inner_products(length: int) -> None:
    rows = torch.randn(4, length)
    wanted = rows.double().numpy() @ rows.double().numpy().T
    assert np.allclose(gram(rows).numpy(), wanted, rtol=1e-12, atol=1e-9)


# --- gradients of past tasks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [3, (3, 4, 3)], ids=["one head", "heads"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("mlp", {}),
        ("lenet", {}),
        ("alexnet", {"norm": "running"}),
        ("alexnet", {"norm": "batch"}),
        ("resnet18", {"norm": "running"}),
        ("resnet18", {"norm": "batch"}),
    ],
)
def test_gradients_of_all_tasks_at_once_are_those_one_by_one(kind: str, options: dict[str, Any], classes: Any) -> None:
    net = network(kind, classes, **options)
    method = GEM(net, lr=0.1, memory=11)
    splits = [data(net, task, count) for task, count in enumerate((8, 3))]  # the second has fewer than its share
    for task, split in enumerate(splits):
        method.start(task)
        method.finish(task, split)
    assert method.memory.counts == [6, 3]
    method.start(2)
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    found = method.past_gradients()
    assert all(torch.equal(buffer, before[name]) for name, buffer in net.named_buffers())
    for row, x, labels, task in zip(found, *map(list, method.memory.by_task()), range(2), strict=True):
        y = labels - (0 if classes == 3 else (0, 3)[task])
        kept = slice(0, method.memory.counts[task])
        logits = net(x, task)  # in company of the rows that repeat, as norms see it
        loss = F.cross_entropy(logits[kept], y[kept])
        slow = torch.autograd.grad(loss, method.parameters, allow_unused=True)
        wanted = torch.cat(
            [
                torch.zeros(p.numel()).double() if g is None else g.flatten()
                for g, p in zip(slow, method.parameters, strict=True)
            ]
        )
        assert torch.allclose(row, wanted, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("classes", [3, (3, 4, 3, 3)], ids=["one head", "heads"])
def test_steps_never_go_uphill_on_any_past_task(classes: Any) -> None:
    """To first order: a tiny step from the weights, and each task's loss on its memory."""
    method = GEM(network(classes=classes), lr=1e-5, memory=24, memory_strength=0.0, ridge=0.0)
    conflicts = 0
    for task in range(4):
        split = data(method.network, task)
        method.start(task)
        for part in torch.arange(32).split(4):
            if task:
                x, labels = method.memory.by_task()
                own = [0] * task if classes == 3 else [0, 3, 7]
                before = [
                    F.cross_entropy(method.logits(a, t), b - own[t]).item()
                    for t, (a, b) in enumerate(zip(x, labels, strict=True))
                ]
                gradient = torch.autograd.grad(method.loss(split.x[part], split.y[part]), method.parameters)
                plain = torch.cat([g.flatten() for g in gradient])
                conflicts += int((method.past_gradients() @ plain).min() < 0)
            method.step(split.x[part], split.y[part])
            if task:
                after = [
                    F.cross_entropy(method.logits(a, t), b - own[t]).item()
                    for t, (a, b) in enumerate(zip(x, labels, strict=True))
                ]
                assert all(a <= b + 1e-9 for a, b in zip(after, before, strict=True))
        method.finish(task, split)
        assert method.nbytes == 24 * (6 * 8 + 8)
    assert conflicts > 5


def test_twenty_tasks() -> None:
    net = network(classes=[3] * 20)
    method = GEM(net, lr=0.05, memory=60)
    for task in range(20):
        split = data(net, task, 12)
        method.start(task)
        assert method.step(split.x, split.y).isfinite()
        method.finish(task, split)
    assert method.memory.counts == [3] * 20


def test_settings_are_checked() -> None:
    assert resolve("pmnist", "gem").stream["pixels"] == "unit"  # and GPM's are normalised
    assert "pixels" not in resolve("pmnist", "gpm").stream
    assert resolve("pmnist", "gem").options == {"lr": 0.1, "memory": 1000, "memory_strength": 0.5, "ridge": 1e-3}
    for wrong in ("memory=0", "memory_strength=-0.5", "ridge=-1"):
        with pytest.raises(OptionError, match="takes a"):
            resolve("pmnist", "gem", [wrong])


def test_a_memory_batch_draws_as_many_labelled_examples_of_every_past_task() -> None:
    method = GEM(network(), lr=0.1, memory=30, memory_batch=8)
    method.memory.tasks = 3
    for task, count in enumerate((32, 4)):  # the second task fills only a part of its share
        method.start(task)
        method.finish(task, data(method.network, task, count))
    method.start(2)
    seen = set()
    for _ in range(20):
        x, labels = method._drawn()
        assert labels.shape == (2, 4)
        for task in range(2):
            own = data(method.network, task, (32, 4)[task])
            for one, label in zip(x[task], labels[task], strict=True):
                (row,) = (own.x == one).all(1).nonzero().flatten().tolist()
                assert own.y[row] == label
                seen.add((task, row))
    assert len(seen) > 10  # not always the same
    random = torch.get_rng_state()
    found = method.past_gradients()
    torch.set_rng_state(random)
    x, labels = method._drawn()
    for task in range(2):
        loss = F.cross_entropy(method.network(x[task], 0), labels[task])
        wanted = torch.autograd.grad(loss, method.parameters)
        assert torch.allclose(found[task], torch.cat([g.flatten() for g in wanted]), rtol=1e-9, atol=1e-12)
