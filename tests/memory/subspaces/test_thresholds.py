"""Which thresholds are allowed, which of several patterns counts, and how a schedule rises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bitwise import frozen_copy, same
from small_net import Net, data

from remnant import GPM
from remnant.memory import parse_threshold

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full")


@pytest.mark.parametrize("value", [0, 0.0, -0.1, 1.0001, 2, float("nan"), "0.97", True, None], ids=repr)
def test_a_threshold_outside_zero_to_one_is_refused_at_once(net: Net, value: Any) -> None:
    with pytest.raises(ValueError, match=r"\(0, 1\]"):
        GPM(net, threshold=value)
    with pytest.raises(ValueError, match=r"threshold\['out'\].*\(0, 1\]"):
        GPM(net, threshold={"out": value, "*": 0.9})
    with pytest.raises(ValueError, match=r"start.*\(0, 1\]"):
        GPM(net, threshold={"start": value, "step": 0.01})


@pytest.mark.parametrize("value", [0.0, 1.5, float("nan"), None], ids=repr)
def test_a_threshold_function_that_strays_is_named_and_nothing_is_lost(memory: GPM, value: Any) -> None:
    memory = GPM(memory._model, threshold=lambda layer, task: value if (layer, task) == ("out", 1) else 0.9)
    memory.consolidate(data())
    before = frozen_copy(memory.state_dict())
    with pytest.raises(ValueError, match=r"threshold\('out', 1\).*\(0, 1\]"):
        memory.consolidate(data())
    assert same(memory.state_dict(), before)


def test_threshold_patterns_must_cover_every_layer_and_mean_one(net: Net) -> None:
    with pytest.raises(ValueError, match=r"No threshold pattern matches layer 'depthwise'"):
        GPM(net, threshold={"conv": 0.9})
    with pytest.raises(ValueError, match=r"\['hiden'\] matches no layer.*'hidden'"):
        GPM(net, threshold={"hiden": 0.9, "*": 0.95})


def test_threshold_patterns_apply_in_the_order_they_are_written(net: Net) -> None:
    x = torch.randn(40, 8)
    low = GPM(net, threshold={"hidden": 0.3, "*": 0.9}).consolidate(x)
    high = GPM(net, threshold={"*": 0.9, "hidden": 0.3}).consolidate(x)
    assert low["hidden"] < high["hidden"]
    assert low["conv"] == high["conv"]


def test_a_schedule_rises_with_the_tasks_and_stops_at_one(net: Net) -> None:
    schedule = parse_threshold({"start": 0.97, "step": 0.02}, ["any"]).of
    assert [round(schedule("any", task), 10) for task in range(4)] == [0.97, 0.99, 1.0, 1.0]
    asked: list[tuple[str, int]] = []
    memory = GPM(net, threshold=lambda layer, task: asked.append((layer, task)) or schedule(layer, task))
    memory.consolidate(data())
    memory.consolidate(data())
    assert set(asked) == {(layer, task) for layer in memory.subspaces for task in (0, 1)}
