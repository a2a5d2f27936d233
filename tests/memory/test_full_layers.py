"""A full layer is fixed to the bit, and the user is warned once."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from bitwise import frozen_copy, same
from small_net import train
from torch import nn

from remnant import GPM


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_full_layer_is_frozen_to_the_bit_with_one_warning(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    model = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 2))
    memory = GPM(model, threshold={"0": 1.0, "2": 0.5})
    with pytest.warns(UserWarning, match=r"These layers are full and cannot change any more: 0\.") as caught:
        memory.consolidate(torch.randn(50, 4))
    assert len(caught) == 1
    assert caught[0].filename == __file__
    before = model[0].weight.detach().clone(), model[0].bias.detach().clone()
    chosen = memory.attach(optimizer(model.parameters(), lr=0.1))
    train(model, chosen, torch.randn(50, 4) * 10, steps=50)
    assert torch.equal(model[0].weight, before[0])
    assert torch.equal(model[0].bias, before[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory.consolidate(torch.randn(50, 4))
    assert "full" in str(memory.report())
    assert memory.report().tasks_left == 0


def test_where_warnings_are_errors_nothing_is_half_done() -> None:
    model = nn.Linear(3, 2)
    memory = GPM(model, threshold=1.0)
    before = frozen_copy(memory.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="These layers are full"):
            memory.consolidate(torch.randn(20, 3))
    assert same(memory.state_dict(), before)


def test_a_full_layer_is_not_announced_again_after_loading(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    memory = GPM(model, threshold=1.0)
    with pytest.warns(UserWarning, match="These layers are full"):
        memory.consolidate(torch.randn(20, 3))
    memory.save(tmp_path / "memory")
    loaded = GPM.load(tmp_path / "memory", model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded.consolidate(torch.randn(20, 3))


@pytest.mark.filterwarnings("ignore:These layers are full")
def test_a_task_more_costs_a_full_memory_next_to_nothing(tmp_path: Path) -> None:
    memory = GPM(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), threshold=1.0)
    sizes, bases = [], []
    for _ in range(40):
        memory.consolidate(torch.randn(30, 4))
        memory.save(tmp_path / "memory.safetensors")
        sizes.append((tmp_path / "memory.safetensors").stat().st_size)
        bases.append(memory.report().nbytes)
    assert bases[20:] == [0] * 20
    assert sizes[-1] - sizes[19] <= 20 * 2 * 4  # a count per task and layer
    assert len(memory._verifier.witnesses) == 16


def test_a_hundred_tasks_on_a_full_layer_keep_nothing_more() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
    memory, kept = GPM(model, threshold=1.0), []
    optimizer = memory.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for task in range(1, 101):
            train(model, optimizer, torch.randn(20, 6), steps=1)
            memory.consolidate(torch.randn(20, 6))
            if task in (20, 100):  # `verify` keeps the examples of 16 tasks
                gc.collect()
                tensors = sum(type(each) in (torch.Tensor, nn.Parameter) for each in gc.get_objects())
                kept.append((memory.report().nbytes, tensors))
    assert memory.report().tasks_left == 0
    assert kept[0] == kept[1]
