"""Layers that come or are unfrozen after the memory was made are refused before a step moves them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from small_net import data, train
from torch import nn

from remnant import GPM

Optimizers = Callable[..., torch.optim.Optimizer]


def frozen_first() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    model[0].requires_grad_(False)
    return model


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    x = data()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW, torch.optim.LBFGS])
def test_a_layer_unfrozen_between_tasks_is_refused_before_it_moves(optimizer: Optimizers) -> None:
    model = frozen_first()
    memory = GPM(model, threshold=0.5)
    chosen = memory.attach(optimizer(model.parameters(), lr=0.1))
    step(model, chosen)
    memory.consolidate(data())
    step(model, chosen)
    model[0].requires_grad_(True)
    before = model[0].weight.detach().clone()
    for use in (
        lambda: step(model, chosen),
        memory.verify,
        lambda: memory.consolidate(data()),
        lambda: step(model, chosen),
    ):
        with pytest.raises(
            ValueError, match=r"'0\.weight' did not exist or was not trainable.*Exclude it.*make a new memory"
        ):
            use()
    assert torch.equal(model[0].weight, before)
    assert len(memory) == 1


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_so_is_a_layer_brought_by_a_new_group(optimizer: Optimizers) -> None:
    model = frozen_first()
    memory = GPM(model, threshold=0.5)
    chosen = memory.attach(optimizer(model.parameters(), lr=0.1))
    train(model, chosen, data())
    memory.consolidate(data())
    model.append(nn.Linear(3, 3))
    chosen.add_param_group({"params": model[3].parameters()})
    for use in (lambda: train(model, chosen, data()), memory.verify, lambda: memory.consolidate(data())):
        with pytest.raises(ValueError, match=r"'3\.weight' did not exist"):
            use()


def test_what_is_excluded_may_come_and_wake_at_any_time() -> None:
    model = frozen_first()
    model.heads = nn.ModuleList([nn.Linear(3, 3)])
    model.heads.forward = lambda x: model.heads[-1](x)  # type: ignore[method-assign]
    memory = GPM(model, threshold=0.5, exclude=["0", "heads.*"])
    chosen = memory.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    train(model, chosen, data())
    memory.consolidate(data())
    model[0].requires_grad_(True)
    model.heads.append(nn.Linear(3, 3))
    chosen.add_param_group({"params": model.heads[1].parameters()})
    before = model.heads[1].weight.detach().clone(), model[0].weight.detach().clone()
    train(model, chosen, data())
    assert not torch.equal(model.heads[1].weight, before[0])
    assert not torch.equal(model[0].weight, before[1])
    memory.verify()
    memory.consolidate(data())


def test_a_layer_that_the_optimizer_does_not_hold_may_be_unfrozen() -> None:
    """Its gradients may be wanted for something else: no step of this optimizer moves it."""
    model = frozen_first()
    memory = GPM(model, threshold=0.5)
    chosen = memory.attach(torch.optim.SGD(model[2].parameters(), lr=0.1))
    memory.consolidate(data())
    model[0].requires_grad_(True)
    train(model, chosen, data())
    memory.verify()
