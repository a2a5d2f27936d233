"""Reduced precision causes no leak: autocast, reduced float32, TF32, or rounding that adds up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_net import data, train
from torch import nn

from remnant import GPM
from remnant.memory.subspaces import split_products
from remnant.memory.subspaces.projection import Projection


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_step_inside_autocast_is_projected_in_full(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    """Some loops step inside the autocast block: bf16 products would leak a thousandth of every step."""
    model = nn.Linear(8, 4)
    memory = GPM(model, threshold=1.0)
    memory.consolidate(data())
    chosen = memory.attach(optimizer(model.parameters(), lr=0.05))
    with torch.autocast("cpu", torch.bfloat16):
        train(model, chosen, torch.randn(30, 8))
    assert memory.verify().worst < 1e-5


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_reduced_float32_precision_does_not_leak_and_is_left_as_it_was(optimizer: Callable[..., Any]) -> None:
    model = nn.Linear(8, 4)
    memory = GPM(model, threshold=1.0)
    memory.consolidate(data())
    chosen = memory.attach(optimizer(model.parameters(), lr=0.05))
    torch.set_float32_matmul_precision("medium")
    try:
        train(model, chosen, torch.randn(30, 8))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert memory.verify().worst < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_tf32_set_by_either_of_torchs_ways_does_not_leak(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    switch = torch.backends.cuda.matmul
    before = switch.fp32_precision
    switch.fp32_precision = "tf32"
    try:
        model = nn.Linear(256, 64).cuda()
        memory = GPM(model, threshold=0.99)
        memory.consolidate(data(rank=40, count=400, width=256))
        train(model, memory.attach(optimizer(model.parameters(), lr=0.01)), torch.randn(64, 256).cuda(), steps=50)
        assert memory.verify().worst < 1e-4
        assert switch.fp32_precision == "tf32"
    finally:
        switch.fp32_precision = before


def test_rounding_does_not_add_up_over_many_steps_of_plain_sgd() -> None:
    """A layer with little room moves little, so that the rounding of a thousand steps would look like a leak."""
    model = nn.Linear(64, 32)
    memory = GPM(model, threshold=0.9999)
    x = torch.randn(500, 64) * torch.logspace(0, -2, 64) + 1
    memory.consolidate(x)
    optimizer = memory.attach(torch.optim.SGD(model.parameters(), lr=0.05))
    train(model, optimizer, x + 0.1, steps=1000)
    (check,) = memory.verify().layers
    assert 0 < check.leak <= max(1e-6, check.rounding)


@pytest.mark.gpu
def test_a_wide_layer_is_projected_by_split_products_that_do_not_leak() -> None:
    model = nn.Linear(4096, 4096, bias=False).cuda()
    memory = GPM(model, threshold=0.999)
    memory.consolidate(data(rank=512, count=2048, width=4096))
    projection = Projection(list(memory.subspaces.values()), 4096, torch.float32, model.weight.device)
    assert projection.bmm is split_products.bmm
    optimizer = memory.attach(torch.optim.AdamW(model.parameters(), lr=1e-3))
    train(model, optimizer, torch.randn(64, 4096).cuda(), steps=20)
    assert memory.verify().worst < 1e-5
    assert torch.backends.cuda.matmul.fp32_precision in ("none", "ieee")
