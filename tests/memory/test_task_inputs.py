"""A task's inputs, measured beside a memory, and a memory that grows by a rule of one's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from remnant import GPM
from remnant.memory import TaskInputs, grow_by, task_inputs


def model(bias: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5, bias=bias), nn.ReLU(), nn.Linear(5, 2, bias=bias)).double()


@pytest.mark.parametrize("count", [4, 50])  # fewer rows than inputs, and more
@pytest.mark.parametrize("bias", [False, True])
def test_the_inputs_are_those_of_the_layers(count: int, bias: bool) -> None:
    net = model(bias)
    memory = GPM(net, threshold=0.7)
    x = torch.randn(count, 6, dtype=torch.float64)
    memory.consolidate([torch.randn(30, 6, dtype=torch.float64)])
    before = memory.state_dict()
    expected = [x, torch.relu(net[0](x)).detach()]
    for found, rows in zip(task_inputs(memory, [x]), expected, strict=True):
        if bias:
            rows = torch.cat([rows, torch.ones(count, 1, dtype=torch.float64)], dim=1)
        assert found.rows == count
        torch.testing.assert_close(found.gram, rows.T @ rows)
        torch.testing.assert_close(found.total, rows.square().sum())
        torch.testing.assert_close(found.along, (rows @ found.subspace.basis).square().sum(0))
    assert memory.state_dict().keys() == before.keys()
    assert len(memory) == 1


def test_the_counts_of_one_hot_inputs_are_a_diagonal_gram() -> None:
    net = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 2, bias=False))
    found = task_inputs(GPM(net), [torch.tensor([0, 2, 2])])[0]
    assert found.gram.diagonal().tolist() == [1, 0, 2, 0]
    assert float(found.total) == 3


def test_a_rule_of_ones_own_may_let_directions_go() -> None:
    net = model()
    memory = GPM(net, threshold=0.9)

    def last_task_alone(inputs: TaskInputs, threshold: float) -> None:
        assert threshold == 0.9
        inputs.subspace.load({"basis": inputs.subspace.basis[:, :0]})
        inputs.subspace.grow(inputs.rows_gram, threshold)

    grow_by(memory, last_task_alone)
    wide, narrow = torch.randn(40, 6, dtype=torch.float64), torch.randn(40, 1, dtype=torch.float64)
    memory.consolidate([wide])
    ranks = [layer.rank for layer in memory.report().layers]
    memory.consolidate([narrow * torch.ones(6, dtype=torch.float64)])
    for layer, before in zip(memory.report().layers, ranks, strict=True):
        assert layer.rank < before
        assert sum(layer.added) == layer.rank
    other = GPM(net, threshold=0.9)
    other.load_state_dict(memory.state_dict())
    assert [layer.rank for layer in other.report().layers] == [layer.rank for layer in memory.report().layers]
