"""A bias is an input of one, fixed or free, and does not leak when it is trained apart from its weight."""

from __future__ import annotations

import pytest
import torch
from attached import train_attached
from torch import nn

from remnant import GPM


@pytest.mark.parametrize("mode", ["augment", "freeze", "free"])
def test_a_bias_is_an_input_of_one_or_fixed_or_free(mode: str) -> None:
    model = nn.Linear(6, 4)
    memory = GPM(model, threshold=1.0, bias=mode)
    old = torch.randn(30, 2) @ torch.randn(2, 6) + torch.randn(6)
    memory.consolidate(old)
    assert memory.subspaces["model"].capacity == (7 if mode == "augment" else 6)
    before, bias = model(old).detach(), model.bias.detach().clone()
    new = torch.randn(30, 6)
    train_attached(memory, lambda: (model(new) - 1).square().sum())
    drift = (model(old) - before).abs().max()
    assert torch.equal(model.bias, bias) == (mode == "freeze")
    assert (drift < 1e-5) == (mode != "free")


@pytest.mark.parametrize("lr", [{"weight": 0.05, "bias": 0.2}, {"weight": 0.05, "bias": 0.05}], ids=str)
def test_a_bias_with_a_learning_rate_of_its_own_does_not_leak(lr: dict[str, float]) -> None:
    """Weight and bias are projected together: stepped by different amounts they would leave the allowed space."""
    model = nn.Linear(6, 4)
    memory = GPM(model, threshold=1.0)
    memory.consolidate(torch.randn(30, 2) @ torch.randn(2, 6) + torch.randn(6))
    optimizer = memory.attach(
        torch.optim.SGD([{"params": [p], "lr": lr[name]} for name, p in model.named_parameters()], lr=1.0)
    )
    for _ in range(20):
        optimizer.zero_grad()
        (model(torch.randn(30, 6)) - 1).square().mean().backward()
        optimizer.step()
    assert memory.verify().worst < 1e-5


@pytest.mark.parametrize("bias_in", ["another optimizer", "no optimizer"])
def test_a_weight_trained_apart_from_its_bias_does_not_leak(bias_in: str) -> None:
    model = nn.Linear(6, 4)
    memory = GPM(model, threshold=1.0)
    memory.consolidate(torch.randn(30, 2) @ torch.randn(2, 6) + torch.randn(6))
    optimizers = [memory.attach(torch.optim.SGD([model.weight], lr=0.1))]
    if bias_in == "another optimizer":
        optimizers.append(memory.attach(torch.optim.SGD([model.bias], lr=0.3)))
    for _ in range(20):
        model.zero_grad()
        (model(torch.randn(30, 6)) - 1).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    assert memory.verify().worst < 1e-5
