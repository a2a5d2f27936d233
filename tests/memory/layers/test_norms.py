"""Norms and their running statistics are frozen from the second task on, or train with norm="free"."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from attached import train_attached
from torch import Tensor, nn

from remnant import GPM

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full")


class RMSNorm(nn.Module):
    """A norm of the user's own."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / x.square().mean(-1, keepdim=True).sqrt()


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(8), nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.RMSNorm(8), RMSNorm(8)])
@pytest.mark.parametrize("mode", ["freeze", "free"])
def test_norms_hold_still_from_the_second_task_on_or_train(norm: nn.Module, mode: str) -> None:
    model = nn.Sequential(nn.Linear(6, 8), copy.deepcopy(norm), nn.Linear(8, 2))
    memory = GPM(model, norm=mode)
    x = torch.randn(30, 6)
    states: list[dict[str, Tensor]] = [copy.deepcopy(model[1].state_dict())]
    for target in (1.0, -1.0):
        train_attached(memory, lambda target=target: (model(x) - target).square().sum())
        memory.consolidate(x)
        states.append(copy.deepcopy(model[1].state_dict()))

    def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
        return all(torch.equal(a[key], b[key]) for key in a)

    assert not same(states[0], states[1])
    assert same(states[1], states[2]) == (mode == "freeze")


def test_running_statistics_hold_through_train_mode_until_detach() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8))
    memory = GPM(model)
    optimizer = memory.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    model.train()
    memory.consolidate(torch.randn(30, 6))
    assert model.training
    statistics = copy.deepcopy(model[1].state_dict())
    model.eval()
    model.train()
    with torch.no_grad():
        model(torch.randn(30, 6) * 100)
    assert not model[1].training
    assert all(torch.equal(tensor, statistics[name]) for name, tensor in model[1].state_dict().items())
    memory.detach(optimizer)
    assert model[1].training
    with torch.no_grad():
        model(torch.randn(30, 6) * 100)
    assert not torch.equal(model[1].running_mean, statistics["running_mean"])
    model.eval()
    assert not model[1].training


def test_a_model_with_held_norms_can_be_copied_and_saved() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8))
    memory = GPM(model)
    memory.consolidate(torch.randn(30, 6))
    twin = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (twin, torch.load(file, weights_only=False)):
        other.train()
        assert not other[1].training
        assert other[1].train.args[0] is other[1], "the copy must hold itself, not the model it came from"
    memory.detach()
    assert model.train()[1].training
