"""The report of a memory counts every full layer and claims nothing too early."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from remnant import GPM, LeakError, register_layer
from remnant.memory import LayerView, UnsupportedError
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
        ({"0": (80, 0, 3)}, "The next task like the last ones may not fit: '0' has only 17 directions left."),
        ({"0": (0, 0, 0), "2": (20, 10, 9)}, "About 4 more tasks like the last ones will fit before '2' is full."),
    ],
)
def test_a_layer_that_has_stopped_growing_limits_no_task(added: dict[str, tuple[int, ...]], said: str) -> None:
    layers = tuple(LayerReport(name, 100, sum(each), each) for name, each in added.items())
    assert said in str(MemoryReport(3, layers, (), 0))


def test_what_is_left_unprotected_is_named(model: nn.Module) -> None:
    memory = GPM(model, exclude=["2"], norm="free")
    assert "Left unprotected: 4 parameters, such as 3.weight." in str(memory.report())
    assert set(memory.report().as_dict()["free"]) == {"2.weight", "2.bias", "3.weight", "3.bias"}


def test_fixed_tensors_that_stayed_take_one_line_and_changed_ones_their_own(model: nn.Module) -> None:
    memory = GPM(model, threshold=0.5)
    memory.consolidate(torch.randn(50, 4))
    assert "Unchanged: 2 fixed tensors, such as 3.weight." in str(memory.verify())
    with torch.no_grad():
        model[3].weight.add_(1)
    with pytest.raises(LeakError, match=r"'3\.weight'"):
        memory.verify()


def test_a_rule_that_forgets_a_weight_is_the_reason_given() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.gate = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(3, 4))

    register_layer(Gated, lambda layer: LayerView(layer.weight, rows=lambda x: x))
    with pytest.raises(UnsupportedError, match=r"'1\.gate' .*the rule of Gated returns no view of it"):
        GPM(nn.Sequential(nn.Linear(4, 4), Gated()))


def test_bare_parameters_of_a_model_are_not_advised_a_rule() -> None:
    class WithToken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.layer = nn.Parameter(torch.randn(4)), nn.Linear(4, 4)

    with pytest.raises(UnsupportedError, match="'token'") as caught:
        GPM(WithToken())
    assert "register_layer" not in str(caught.value)
