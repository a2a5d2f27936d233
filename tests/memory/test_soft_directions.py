"""A user may weaken or add directions between two steps, and the next step follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from remnant import GPM, Subspace

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full")


@pytest.fixture(params=["linear", "embedding"])
def memory(request: pytest.FixtureRequest) -> Iterator[GPM]:
    """One task old, with four of nine directions remembered, and attached to an optimizer."""
    one_hot = request.param == "embedding"
    first = nn.Embedding(9, 6) if one_hot else nn.Linear(9, 6, bias=False)
    memory = GPM(nn.Sequential(first, nn.Linear(6, 2)), threshold=1.0)
    memory.consolidate(torch.arange(4) if one_hot else torch.randn(20, 4) @ torch.randn(4, 9))
    optimizer = memory.attach(torch.optim.SGD(memory._model.parameters(), lr=0.01))
    yield memory
    memory.detach(optimizer)


def held(memory: GPM) -> Subspace:
    subspace = memory.subspaces["0"]
    assert isinstance(subspace, Subspace)
    return subspace


def step(memory: GPM) -> Tensor:
    """The change of the first weight in a step, outputs × inputs."""
    first = next(memory._model.children())
    before = first.weight.detach().clone()
    memory._model.zero_grad()
    one_hot = isinstance(first, nn.Embedding)
    memory._model(torch.arange(9) if one_hot else torch.randn(32, 9)).square().sum().backward()
    (optimizer,) = memory._constraint.optimizers
    optimizer.step()
    change = first.weight.detach() - before
    return change.mT if one_hot else change


def let_go(subspace: Subspace) -> None:
    subspace.weights = torch.zeros(subspace.rank)


def let_go_in_place(subspace: Subspace) -> None:
    subspace.weights *= 0


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("change", [let_go, let_go_in_place])
def test_directions_let_go_are_free_from_the_next_step_on(
    memory: GPM, change: Callable[[Subspace], None], steps: int
) -> None:
    basis = held(memory).basis.clone()
    for _ in range(steps):
        moved = step(memory)
        assert (moved @ basis).norm() < 1e-5 * moved.norm()
    change(held(memory))
    moved = step(memory)
    assert (moved @ basis).norm() > 0.1 * moved.norm()


def test_directions_added_by_hand_are_held_from_the_next_step_on(memory: GPM) -> None:
    assert step(memory).norm() > 0
    held(memory).fill()
    assert step(memory).norm() < 1e-6


def test_weights_are_a_copy_both_ways() -> None:
    subspace = Subspace(5)
    subspace.grow(torch.eye(5, dtype=torch.float64), 0.5)
    mine = torch.full((subspace.rank,), 0.5, dtype=torch.float64)
    subspace.weights = mine
    mine.fill_(2)
    subspace.weights.fill_(2)
    assert torch.equal(subspace.weights, torch.full_like(mine, 0.5))
