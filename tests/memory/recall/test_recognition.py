"""The task of an example, compared with the residuals ‖x − B·Bᵀ·x‖² written out, where tasks fit almost equally well, too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from remnant.memory import Recognition
from remnant.memory.recall.recognition import recognised
from remnant.memory.subspaces.subspace import Subspace

N = 30


def subspace(rows: Tensor) -> Subspace:
    made = Subspace(N)
    made.grow(rows.mT @ rows, 1.0)
    return made


def written_out(rows: Tensor, tasks: list[list[Subspace]], examples: int) -> Recognition:
    """Every residual by the projection itself."""
    found = []
    for own in tasks:
        outside = [x - x @ s.basis @ s.basis.mT for x, s in zip(rows.double(), own, strict=True)]
        found.append(torch.stack(outside).square().sum(dim=(0, 2)).reshape(examples, -1).sum(1))
    whole = rows.double().square().sum(dim=(0, 2)).reshape(examples, -1).sum(1)
    best, second = torch.stack([*found, whole]).sort(dim=0).values[:2]
    return Recognition(torch.stack(found).argmin(0), 1 - best / second)


@pytest.mark.parametrize("rank", [3, 20], ids=["basis", "complement"])
@pytest.mark.parametrize("groups", [1, 2])
def test_it_is_the_task_that_leaves_the_least(groups: int, rank: int) -> None:
    torch.manual_seed(0)
    tasks = [[subspace(torch.randn(rank, N).double()) for _ in range(groups)] for _ in range(4)]
    rows = torch.randn(groups, 60, N)
    for examples in (60, 20):
        found, expected = recognised(rows, tasks, examples), written_out(rows, tasks, examples)
        assert torch.equal(found.task, expected.task)
        torch.testing.assert_close(found.confidence, expected.confidence, rtol=0, atol=1e-12)


@pytest.mark.parametrize("apart", [1e-5, 1e-7, 1e-10])
@pytest.mark.parametrize("rank", [3, 20], ids=["basis", "complement"])
def test_close_calls_are_exact(rank: int, apart: float) -> None:
    """‖x‖² − ‖Bᵀ·x‖² would lose residuals of 1e-20·‖x‖², and what tells the two tasks apart with them."""
    torch.manual_seed(0)
    old = torch.randn(rank, N).double()
    tasks = [[subspace(old + (number + 1) * apart * torch.randn(rank, N).double())] for number in range(3)]
    x = torch.cat([torch.randn(20, rank).double() @ old, torch.randn(20, N).double()])[None]
    found, expected = recognised(x, tasks, 40), written_out(x, tasks, 40)
    assert torch.equal(found.task, expected.task)
    torch.testing.assert_close(found.confidence, expected.confidence, rtol=0, atol=1e-4)
    assert found.confidence[:20].min() > 0.1


def test_equal_tasks_and_nothing_at_all_give_no_confidence() -> None:
    same = subspace(torch.eye(N)[:4].double())
    x = torch.cat([torch.randn(5, N), torch.zeros(1, N)])[None]
    assert not recognised(x, [[same], [same]], 6).confidence.any()
