"""DEN's four parts against slow versions, and that a task sees only units up to its timestamp."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from remnant.data import Split
from remnant.methods.den import DEN
from remnant.models import build

SHAPES: dict[str, tuple[int, ...]] = {"lenet": (3, 8, 8), "mlp": (5,), "alexnet": (3, 19, 19)}
WIDTHS: dict[str, dict[str, Any]] = {"lenet": {"width": 2}, "mlp": {"hidden": (6, 4)}, "alexnet": {"width": 2}}


def learner(kind: str = "mlp", network: dict[str, Any] | None = None, **options: Any) -> DEN:
    net = build(kind, input_shape=SHAPES[kind], classes=(3, 3, 3), seed=1, **WIDTHS[kind], **(network or {}))
    return DEN(net.double(), lr=0.1, **options)


def data(kind: str = "mlp", seed: int = 0, count: int = 24) -> Split:
    g = torch.Generator().manual_seed(seed)
    return Split.of(torch.randn(count, *SHAPES[kind], generator=g).double(), torch.arange(count) % 3)


def train(method: DEN, task: int, split: Split, epochs: int = 10, until: int | None = None) -> None:
    method.start(task)
    for epoch in range(epochs if until is None else until):
        method.network.train()
        method.lr.fill_(0.1)
        method.on_epoch_start(epoch, epochs, 1)
        method.step(split.x, split.y)
    method.network.eval()
    if until is None:
        method.finish(task, split)


def of_layers(method: DEN, task: int) -> list[Tensor]:
    return method.units.of_layers(method.units.seen[task])


@pytest.mark.parametrize("epoch", [0, 1, 5, 8])
def test_the_loss_of_each_part(epoch: int) -> None:
    torch.manual_seed(0)
    prices = {"sparsity": 0.1, "pull": 0.2, "group_sparsity": 0.3, "decay": 0.05}
    method, split = learner("lenet", drift=0.0, **prices), data("lenet")
    train(method, 0, split)
    train(method, 1, split, until=epoch + 1)
    net, head = method.network, method.network.head_of(1).weight
    weights = {
        name: p * method.units.mask(p, method.units.seen[1]) for name, p in method.units.parameters_for(1).items()
    }
    expected = F.cross_entropy(method.logits(split.x, 1), split.y)
    expected = expected + 0.05 / 2 * sum((w**2).sum() for w in weights.values())
    if epoch == 0:
        expected = expected + 0.1 * head.abs().sum()
    if epoch == 1:
        for p, old in zip(method.units.body.values(), method.before, strict=True):
            expected = expected + 0.2 / 2 * ((p - old) ** 2).sum()
    if epoch == 5:
        for name, new in zip(method.units.layers, method.units.of_layers(method.new), strict=True):
            rows = net.get_parameter(f"{name}.weight")[new > 0]
            assert len(rows) == 10
            expected = expected + 0.3 * sum(row.norm() for row in rows)
    net.train()
    assert method.loss(split.x, split.y).item() == pytest.approx(expected.item(), rel=1e-9)


def test_the_first_task_pays_for_all_weights() -> None:
    method, split = learner(sparsity=0.1, decay=0.0), data()
    method.start(0)
    expected = F.cross_entropy(method.logits(split.x, 0), split.y)
    expected = expected + 0.1 * sum(p.abs().sum() for p in method.units.parameters_for(0).values())
    assert method.loss(split.x, split.y).item() == pytest.approx(expected.item())


def test_units_are_selected_along_weights_that_are_not_zero() -> None:
    method = learner(zero=0.01)
    method.start(1)
    two = method.network.hidden[1].weight  # type: ignore[union-attr, index]
    with torch.no_grad():
        for p in (two, method.network.head_of(1).weight):
            p.fill_(0.005)
        method.network.head_of(1).weight[2, 3] = -1.0  # class 2 reads unit 3, which reads units 0 and 5
        two[3, 0], two[3, 5], two[1, 2] = 1.0, -0.02, 1.0
    first, second = method.units.of_layers(method.selected())
    assert first.nonzero().flatten().tolist() == [0, 5]
    assert second.nonzero().flatten().tolist() == [3]
    method._retrain()
    free = dict(zip(method.units.body, method.free, strict=True))
    assert free["hidden.1.weight"].nonzero().tolist() == [[3, 0], [3, 5]]
    assert free["hidden.0.weight"].any(1).nonzero().flatten().tolist() == [0, 5]


@pytest.mark.parametrize(("kind", "network"), [("mlp", {"bias": True}), ("alexnet", {"norm": "running"})])
def test_a_split_keeps_the_answers_of_its_task_and_returns_old_units(kind: str, network: dict[str, Any]) -> None:
    torch.manual_seed(0)
    method, split = learner(kind, network, drift=1e-3, zero=0.0, split={"*": 2}), data(kind)
    train(method, 0, split)
    train(method, 1, split, until=8)
    answer = method.logits(split.x, 1)
    now = {p: p.detach().clone() for p in method.units.body.values()}
    old = dict(zip(method.units.body.values(), method.before, strict=True))
    with torch.no_grad():
        method._split_units()
    assert torch.allclose(method.logits(split.x, 1), answer)
    for layer, (before, after) in enumerate(zip(of_layers(method, 0), of_layers(method, 1), strict=True)):
        (replaced,) = torch.where((before == 1) & (after == 0))
        assert 1 <= len(replaced) <= 2
        drift = torch.zeros_like(before)
        for p in method.units.made_by(layer):
            moved = (now[p] - old[p]) * method.units.mask(p, method.units.seen[0])
            drift += moved.reshape(len(p), -1).square().sum(1)
        assert set(replaced.tolist()) == set(drift.topk(len(replaced)).indices.tolist())
        for p in method.units.made_by(layer):
            assert torch.equal(p[replaced], old[p][replaced])
    assert all(((free == 0) | (free == 1)).all() for free in method.free)


def test_a_task_sees_units_up_to_its_timestamp() -> None:
    """Whatever later tasks do to their own units and to weights that lead to them, the old tasks' answers stay."""
    torch.manual_seed(0)
    method, split = learner("lenet", split={"*": 1}, drift=1e-3), data("lenet")
    for task in range(2):
        train(method, task, split)
    answer = method.logits(split.x, 0)
    later = 1 - method.units.seen[0]
    with torch.no_grad():
        for p in method.units.body.values():
            p += 5 * (1 - method.units.mask(p, 1 - later))
    assert torch.equal(method.logits(split.x, 0), answer)
    assert not torch.allclose(method.logits(split.x, 1), answer)


def test_a_new_task_forgets_little() -> None:
    torch.manual_seed(0)
    method, split = learner("lenet"), data("lenet")
    train(method, 0, split, epochs=30)
    before = method.logits(split.x, 0)
    train(method, 1, data("lenet", 1), epochs=30)
    assert F.mse_loss(method.logits(split.x, 0), before) < 0.05 * before.var()


def test_added_units_are_counted_and_dead_ones_are_not() -> None:
    torch.manual_seed(0)
    method, split = learner(grow={"hidden.0": 3, "hidden.1": 2}, split={"*": 0}, zero=1e-6), data()
    base = 5 * 6 + 6 * 4 + 3 * 4 * 3
    train(method, 0, split)
    assert method.capacity == 1.0
    train(method, 1, split, until=10)
    with torch.no_grad():
        method.network.hidden[0].weight[7] = 0  # type: ignore[union-attr, index]  # the second of three new units
    method.finish(1, split)
    assert [int(seen.sum()) for seen in of_layers(method, 1)] == [8, 6]
    assert method.capacity == pytest.approx((5 * 8 + 8 * 6 + 3 * 4 * 2 + 3 * 6) / base)
    train(method, 2, split)
    assert [int(seen.sum()) for seen in of_layers(method, 2)] == [11, 8]


def test_a_task_that_is_easy_adds_nothing() -> None:
    torch.manual_seed(0)
    method, split = learner("lenet", enough=100.0, drift=100.0), data("lenet")
    for task in range(2):
        train(method, task, split)
    assert method.capacity == 1.0
