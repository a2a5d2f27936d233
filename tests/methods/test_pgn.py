"""PGN's columns against a slow version, and that old columns never move."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from remnant.data import Split
from remnant.methods.pgn import PGN, Column, Columns
from remnant.models import Network, build

SHAPES: dict[str, tuple[int, ...]] = {"lenet": (3, 8, 8), "mlp": (5,), "alexnet": (3, 19, 19)}
WIDTHS: dict[str, dict[str, Any]] = {"lenet": {"width": 2}, "mlp": {"hidden": (6, 4)}, "alexnet": {"width": 2}}


def network(kind: str = "mlp", **options: Any) -> Network:
    made = build(kind, input_shape=SHAPES[kind], classes=(3, 3, 3), seed=1, **WIDTHS[kind], **options)
    return made.double()


def data(kind: str = "mlp", seed: int = 0, count: int = 24) -> Split:
    g = torch.Generator().manual_seed(seed)
    return Split.of(torch.randn(count, *SHAPES[kind], generator=g).double(), torch.arange(count) % 3)


def train(method: PGN, task: int, split: Split, steps: int = 5) -> None:
    method.start(task)
    for _ in range(steps):
        method.step(split.x, split.y)
    method.finish(task, split)


def lateral(column: Column, own: Tensor, old: list[Tensor]) -> Tensor:
    """W·h + U·ReLU(V·[s_j·h_j]), written out for rows."""
    scaled = torch.cat([s * h for s, h in zip(column.scale, old, strict=True)], 1)
    W, U = column.weight.split(own.shape[1], 1)
    return own @ W.T + F.relu(scaled @ column.mix.T) @ U.T


def test_three_columns_of_a_perceptron_are_as_written_out() -> None:
    torch.manual_seed(0)
    method = PGN(network(), lr=0.1, width=0.5)
    one, two = method.body
    assert isinstance(two, Columns)
    split = data()
    for task in range(3):
        train(method, task, split)
    x, h1, h2 = split.x, [], []
    for t in range(3):
        h1.append(F.relu(x @ one.columns[t].weight.T))
        column = two.columns[t]
        h2.append(F.relu(h1[0] @ column.weight.T if t == 0 else lateral(column, h1[t], h1[:t])))  # type: ignore[arg-type]
        expected = torch.cat(h2, 1) @ method.network.head_of(t).weight.T
        assert torch.allclose(method.logits(x, t), expected)


@pytest.mark.parametrize(
    ("kind", "options"), [("lenet", {"bias": True}), ("mlp", {}), ("alexnet", {"norm": "running"})]
)
def test_old_columns_never_move_and_old_answers_stay(kind: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    method, split = PGN(network(kind, **options), lr=0.1, width=0.5), data(kind)
    answers: list[Tensor] = []
    for task in range(3):
        before = {name: tensor.clone() for name, tensor in method.network.state_dict().items()}
        train(method, task, split)
        method.network.eval()
        moved = {name for name, tensor in method.network.state_dict().items() if not torch.equal(tensor, before[name])}
        assert any(f"columns.{task}." in name for name in moved)
        assert all(f"columns.{task}." in name or f"heads.{task}." in name for name in moved)
        for old, answer in enumerate(answers):
            assert torch.equal(method.logits(split.x, old), answer)
        answers.append(method.logits(split.x, task))


def test_a_new_column_learns_from_old_ones() -> None:
    torch.manual_seed(0)
    method, split = PGN(network("lenet"), lr=0.1, width=0.5), data("lenet")
    train(method, 0, split)
    method.start(1)
    gradients = method.gradients(method.loss(split.x, split.y))
    columns = [each.columns[1] for each in method.body]
    assert {id(p) for p in gradients} == {
        id(p) for p in [*(p for c in columns for p in c.parameters()), *method.network.heads[1].parameters()]
    }
    assert all(gradient.any() for gradient in gradients.values())


def test_capacity_counts_columns_laterals_and_heads() -> None:
    method, split = PGN(network(), lr=0.1, width=0.5), data()
    base = 5 * 6 + 6 * 4 + 3 * 4 * 3
    assert method.capacity == 1.0
    first = 3 * 5 + 2 * (3 + 3) + 3 * 6 + 1 + 3 * 2  # W; W and U; V and s; the head's share
    second = 3 * 5 + 2 * (3 + 3) + 3 * 9 + 2 + 3 * 4
    for task, added in enumerate([0, first, first + second]):
        train(method, task, split)
        assert method.capacity == pytest.approx(1 + added / base)
        assert method.nbytes == added * 8
