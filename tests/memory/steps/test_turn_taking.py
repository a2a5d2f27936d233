"""Optimizers that share weights and take turns: one projection and one restore per cycle, and nothing leaks."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bitwise import same
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, Optimizer

from remnant import GPM
from remnant.memory.steps.bundle import Bundle


@pytest.fixture
def restores(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many weights and biases each restore of a bundle put back."""
    sizes: list[int] = []
    original = Bundle.restore
    monkeypatch.setattr(Bundle, "restore", lambda bundle: (sizes.append(len(bundle.parameters)), original(bundle))[1])
    return sizes


def split(kind: type[Optimizer] = SGD, lr: float = 0.3) -> tuple[nn.Module, GPM, Optimizer, Optimizer]:
    """A network, and an optimizer for its weights and another for its biases."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    memory = GPM(model, 0.99)
    memory.consolidate(torch.randn(24, 2) @ torch.randn(2, 8))
    for_weights = kind([layer.weight for layer in (model[0], model[2])], lr=lr)
    for_biases = kind([layer.bias for layer in (model[0], model[2])], lr=lr)
    memory.attach(for_weights), memory.attach(for_biases)
    return model, memory, for_weights, for_biases


def backward(model: nn.Module) -> None:
    model.zero_grad()
    (model(torch.randn(16, 8)) - 1).square().mean().backward()


def leak(memory: GPM) -> float:
    """As `verify` measures it, but without letting the memory settle anything first."""
    return max(check.leak for check in memory._constraint.checks())


def learn(model: nn.Module, *optimizers: Optimizer, steps: int = 5) -> None:
    for _ in range(steps):
        backward(model)
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_a_round_restores_once_and_leaks_nothing(kind: type[Optimizer], restores: list[int]) -> None:
    model, memory, *optimizers = split(kind, 0.05)
    learn(model, *optimizers, steps=3)
    assert restores == [4] * 4  # twice while it learns the order, then once in each cycle
    assert leak(memory) < 1e-5


def test_an_optimizer_that_steps_twice_restores_its_own_weights_again(restores: list[int]) -> None:
    model, memory, for_weights, for_biases = split()
    learn(model, for_weights, for_biases)
    learn(model, for_weights, steps=2)
    assert leak(memory) < 1e-5
    restores.clear()
    learn(model, for_weights, for_biases)
    assert leak(memory) < 1e-5
    assert len(restores) == 10


def test_a_skipped_step_leaves_no_forward_pass_inside_a_cycle() -> None:
    """A gradient scaler may leave out the step that begins a cycle. The others then end an iteration, not a cycle."""
    model, memory, for_weights, for_biases = split()
    learn(model, for_weights, for_biases)
    learn(model, for_biases, steps=1)
    assert leak(memory) < 1e-5
    learn(model, for_weights, for_biases)
    assert leak(memory) < 1e-5


@pytest.mark.parametrize("use", ["verify", "state_dict", "restore", "detach"])
def test_every_use_of_the_memory_settles_an_unfinished_cycle(use: str) -> None:
    model, memory, for_weights, for_biases = split()
    learn(model, for_weights, for_biases, steps=2)
    learn(model, for_weights, steps=1)
    assert leak(memory) > 1e-3
    getattr(memory, use)()
    assert leak(memory) < 1e-5


@pytest.mark.parametrize("first", ["memory", "model"])
def test_a_memory_saved_inside_a_cycle_comes_back_settled(first: str, tmp_path: Path) -> None:
    """The weights may have been saved before the memory settled them."""
    model, memory, for_weights, for_biases = split()
    learn(model, for_weights, for_biases, steps=2)
    learn(model, for_weights, steps=1)
    weights = copy.deepcopy(model) if first == "model" else model
    memory.save(tmp_path / "memory")
    loaded = GPM.load(tmp_path / "memory", weights)
    assert leak(memory) < 1e-5
    assert same(loaded.state_dict(), memory.state_dict())
    assert leak(loaded) < 1e-5
    torch.testing.assert_close(weights.state_dict(), model.state_dict())


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("first", ["memory", "model"])
def test_a_copy_made_inside_a_cycle_is_settled(way: str, first: str) -> None:
    model, memory, for_weights, for_biases = split()
    learn(model, for_weights, for_biases, steps=2)
    learn(model, for_weights, steps=1)
    if first == "memory":
        copied = COPIES[way](memory)
    else:
        _, copied = COPIES[way]((model, memory))
    assert same(copied.state_dict(), memory.state_dict())
    assert max(leak(memory), leak(copied)) < 1e-5
    torch.testing.assert_close(copied._model.state_dict(), model.state_dict())


def test_a_gradient_that_changes_inside_a_cycle_is_projected_again() -> None:
    model, memory, for_weights, for_biases = split()
    learn(model, for_weights, for_biases)
    backward(model)
    for_weights.step()
    for parameter in for_biases.param_groups[0]["params"]:
        parameter.grad.add_(1.0)
    for_biases.step()
    assert leak(memory) < 1e-5
    stack = torch.cat([model[0].weight.grad, model[0].bias.grad[:, None]], dim=1)
    basis: Tensor = memory.subspaces["0"].basis
    assert float((stack @ basis).norm()) < 1e-5 * float(stack.norm())


def test_the_optimizers_learn_their_turns_again_after_each_task(restores: list[int]) -> None:
    model, memory, *optimizers = split()
    learn(model, *optimizers)
    memory.consolidate(torch.randn(24, 1) @ torch.randn(1, 8))
    restores.clear()
    learn(model, *optimizers, steps=2)
    assert len(restores) == 3
    assert leak(memory) < 1e-5


def test_a_closure_ends_the_turns() -> None:
    model, memory, for_weights, for_biases = split()
    learn(model, for_weights, for_biases)
    memory.detach(for_biases)
    with_closure = memory.attach(LBFGS(for_biases.param_groups[0]["params"], lr=0.1, max_iter=3))
    for _ in range(3):
        backward(model)
        for_weights.step()

        def closure() -> Tensor:
            backward(model)
            return torch.tensor(0.0)

        with_closure.step(closure)
        assert leak(memory) < 1e-5
