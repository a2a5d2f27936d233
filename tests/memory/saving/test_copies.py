"""A copy of a model, its memory and its optimizer trains on its own, as protected as the original."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_net import Net, adamw, data, train
from torch import nn

from remnant import GPM


def through_torch(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "torch.save": through_torch,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_a_copy_stays_attached_and_leaves_the_original_alone(way: str, order: tuple[int, ...], net: Net) -> None:
    memory = GPM(net, threshold={"start": 0.9, "step": 0.01})
    optimizer = memory.attach(adamw(net))
    train(net, optimizer, data())
    memory.consolidate(data())
    train(net, optimizer, data())
    parts = (net, memory, optimizer)
    copies = WAYS[way](tuple(parts[i] for i in order))
    model, other, chosen = (copies[order.index(i)] for i in range(3))
    assert (other._model is model, len(other), other._settings) == (True, 1, memory._settings)
    before = [p.detach().clone() for p in net.parameters()]
    train(model, chosen, data(), steps=20)
    assert other.verify().worst < 1e-4
    assert all(torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True))
    assert not torch.equal(model.hidden.weight, net.hidden.weight)
    train(net, optimizer, data(), steps=20)
    assert memory.verify().worst < 1e-4
    other.consolidate(data())
    assert (len(other), len(memory)) == (2, 1)
    other.detach(chosen)
    assert not chosen._optimizer_step_pre_hooks
    assert optimizer._optimizer_step_pre_hooks


def test_a_copy_continues_exactly(memory: GPM, net: Net) -> None:
    optimizer = memory.attach(torch.optim.SGD(net.parameters(), lr=0.05))
    x = data()
    train(net, optimizer, x, steps=5)
    model, other, chosen = copy.deepcopy((net, memory, optimizer))
    train(net, optimizer, x, steps=9)
    train(model, chosen, x, steps=9)
    assert other._constraint.steps == memory._constraint.steps
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), model.parameters(), strict=True))


def test_a_memory_that_is_not_attached_pickles_with_its_model() -> None:
    memory = GPM(nn.Linear(8, 4))
    memory.attach(torch.optim.SGD(memory._model.parameters(), lr=0.1))  # and nobody keeps it
    memory.consolidate(data())
    twin = pickle.loads(pickle.dumps(memory))
    assert twin.report() == memory.report()
    assert not twin._attached
    twin.verify()


def test_a_threshold_that_is_a_function_is_copied(net: Net) -> None:
    memory = copy.deepcopy(GPM(net, threshold=lambda layer, task: 0.5))
    assert memory._threshold("hidden", 0) == 0.5


def test_what_the_first_task_has_trained_is_known_to_the_copy(net: Net) -> None:
    memory = GPM(net)
    optimizer = memory.attach(adamw(net))
    train(net, optimizer, data(), steps=1)
    other = copy.deepcopy(memory)
    names = {parameter: name for name, parameter in other._model.named_parameters()}
    assert {"hidden.weight", "out.bias"} <= {names[p] for p in other._constraint.stepped}


@pytest.mark.parametrize("way", WAYS)
def test_a_model_may_hold_its_own_memory(way: str, net: Net) -> None:
    net.memory = GPM(net)  # type: ignore[assignment]
    net.memory.consolidate(data())  # type: ignore[operator]
    twin = WAYS[way](net)
    assert twin.memory._model is twin
    assert len(twin.memory) == 1
    optimizer = twin.memory.attach(adamw(twin))
    train(twin, optimizer, data())
    twin.memory.verify()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = twin.memory.nothing


@pytest.mark.parametrize("way", WAYS)
def test_a_layer_that_was_frozen_since_is_still_protected_in_the_copy(way: str, net: Net) -> None:
    memory = GPM(net)
    memory.consolidate(data())
    net.hidden.requires_grad_(False)
    twin = WAYS[way](memory)
    assert twin.report() == memory.report()
    assert [p.requires_grad for p in twin._model.parameters()] == [p.requires_grad for p in net.parameters()]
    twin._model.hidden.requires_grad_(True)
    train(twin._model, twin.attach(adamw(twin._model)), data())
    assert twin.verify().worst < 1e-4
