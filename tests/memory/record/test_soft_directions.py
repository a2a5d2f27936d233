"""A user may weaken or add directions between two steps, and the next step follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from remnant import GPM, Subspace

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full", "ignore:Old outputs moved")


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


def held(memory: GPM, layer: str = "0") -> Subspace:
    subspace = memory.subspaces[layer]
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


@pytest.mark.parametrize("alpha", [0.0, 1, 10.0])
@pytest.mark.parametrize("one_hot", [False, True], ids=["linear", "embedding"])
def test_soft_weighs_each_direction_by_how_much_the_tasks_used_it(alpha: float, one_hot: bool) -> None:
    torch.manual_seed(0)
    model = nn.Embedding(9, 6) if one_hot else nn.Linear(9, 6, bias=False).double()
    memory, expected, softest = GPM(model, 0.95, soft=alpha), {}, 1.0
    for _ in range(3):
        scale = torch.rand(9, dtype=torch.float64) ** 3
        x = torch.multinomial(scale, 40, replacement=True) if one_hot else torch.randn(40, 9).double() * scale
        memory.consolidate(x)
        basis = held(memory, "model").basis.double()
        rows = torch.eye(9).double()[x] if one_hot else x
        sigma = (rows @ basis).norm(dim=0)
        gained = (alpha + 1) * sigma / (alpha * sigma + sigma.max())
        for n, direction in enumerate(basis.T):
            key = int(direction.argmax()) if one_hot else n
            expected[key] = min(1.0, expected.get(key, 0.0) + float(gained[n]))
            assert float(held(memory, "model").weights[n]) == pytest.approx(expected[key], rel=1e-5)
        softest = min(softest, *expected.values())
    assert 0 < softest < 1


def test_soft_lets_new_tasks_learn_more_and_holds_the_strongest_direction() -> None:
    torch.manual_seed(0)
    x, new = torch.randn(50, 9) * torch.linspace(1, 0.05, 9), torch.randn(50, 9)
    losses, drifts = {}, {}
    for alpha in (None, 1e15, 1.0):
        torch.manual_seed(1)
        model = nn.Linear(9, 6)
        memory = GPM(model, 0.999, soft=alpha)
        memory.consolidate(x)
        before, (basis, weights) = model(x).detach(), (held(memory, "model").basis, held(memory, "model").weights)
        start = torch.cat([model.weight, model.bias[:, None]], dim=1).detach().clone()
        optimizer = memory.attach(torch.optim.Adam(model.parameters(), lr=0.01))
        for _ in range(60):
            optimizer.zero_grad()
            loss = (model(new) - 1).square().mean()
            loss.backward()
            optimizer.step()
        moved = torch.cat([model.weight, model.bias[:, None]], dim=1).detach() - start
        assert (moved @ basis[:, weights >= 1]).norm() < 1e-5 * moved.norm()
        losses[alpha], drifts[alpha] = float(loss.detach()), float((model(x).detach() - before).norm())
        memory.verify()
        memory.detach()
    assert losses[1e15] == pytest.approx(losses[None], rel=1e-4)  # hardly soft at all
    assert losses[1.0] < 0.95 * losses[None]
    assert drifts[1.0] > drifts[None]


def test_soft_must_be_a_number_and_cannot_be_recalled() -> None:
    for wrong in (-1.0, float("nan"), float("inf"), True, "1"):
        with pytest.raises(ValueError, match="soft is"):
            GPM(nn.Linear(3, 2), soft=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="never move"):
        GPM(nn.Linear(3, 2), soft=1.0, recall=True)
