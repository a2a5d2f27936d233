"""The report of a memory counts every full layer and claims nothing too early."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from remnant import GPM
from remnant.memory.report import LayerReport, MemoryReport


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 2), nn.LayerNorm(2))


@pytest.mark.filterwarnings("ignore:These layers are full")
@pytest.mark.parametrize(
    ("full", "said"),
    [
        (["0"], "'0' is full: it learns no more"),
        (["0", "1"], "'0' and 1 more are full: they learn no more"),
        (["2", "1", "0"], "'0' and 2 more are full: they learn no more"),
    ],
)
def test_the_forecast_counts_every_full_layer(model: nn.Module, full: list[str], said: str) -> None:
    memory = GPM(model, threshold=dict.fromkeys(full, 1.0) | {"*": 0.1})
    memory.consolidate(torch.randn(50, 4))
    assert said in str(memory.report())


def test_before_the_first_task_nothing_counts_as_frozen(model: nn.Module) -> None:
    memory = GPM(model, threshold=0.5)
    assert "Held fixed from the second task on: 2 parameters" in str(memory.report())
    assert str(memory.verify()) == "No task is remembered yet, so nothing could have moved."
    memory.consolidate(torch.randn(50, 4))
    assert "Held fixed since the first task: 2 parameters" in str(memory.report())
    assert str(memory.verify()).startswith("layer ")


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ({"0": (80, 15, 0), "2": (20, 10, 9)}, "fit before '2' is full. '0' has stopped growing: the last task"),
        ({"0": (80, 15, 0), "1": (9, 0, 0), "2": (20, 10, 9)}, "'0' and 1 more have stopped growing"),
        ({"0": (80, 15, 0)}, "so tasks like it will not fill the memory."),
        ({"0": (80, 0, 3)}, "About 0 more tasks like the last ones will fit before '0' is full."),
        ({"0": (0, 0, 0), "2": (20, 10, 9)}, "About 4 more tasks like the last ones will fit before '2' is full."),
    ],
)
def test_a_layer_that_has_stopped_growing_limits_no_task(added: dict[str, tuple[int, ...]], said: str) -> None:
    layers = tuple(LayerReport(name, 100, sum(each), each) for name, each in added.items())
    assert said in str(MemoryReport(3, layers, (), (), 0))
