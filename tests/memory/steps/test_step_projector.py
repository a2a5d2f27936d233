"""Projecting a layer's input in the backward pass gives the projected gradient of its weight."""

from __future__ import annotations

import warnings
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from remnant import GPM
from remnant.memory import StepProjector


def taught(model: nn.Module, x: Tensor) -> GPM:
    memory = GPM(model, 0.8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # small layers may be full
        memory.consolidate([x])
    return memory


def gradients(memory: GPM, x: Tensor, rows: int | None) -> list[Tensor]:
    parameters, projector = list(memory._model.parameters()), StepProjector(memory)

    def computed() -> list[Tensor]:
        found = torch.autograd.grad(memory._model(x).square().sum(), parameters)
        return list(projector.project(dict(zip(parameters, found, strict=True))).values())

    if rows is None:
        return computed()
    with projector.through_inputs(rows):
        return computed()


@given(
    widths=st.lists(st.integers(1, 12), min_size=2, max_size=4),
    rows=st.integers(1, 12),
    positions=st.sampled_from([None, 1, 3]),
    seed=st.integers(0, 99),
)
def test_both_ways_give_the_same_gradients(widths: list[int], rows: int, positions: int | None, seed: int) -> None:
    torch.manual_seed(seed)
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b, bias=False), nn.Tanh())]
    memory = taught(nn.Sequential(*layers).double(), torch.randn(3, widths[0], dtype=torch.float64))
    shape = (rows, widths[0]) if positions is None else (rows, positions, widths[0])
    x = torch.randn(shape, dtype=torch.float64)
    expected = gradients(memory, x, None)
    for ours, theirs in zip(gradients(memory, x, rows * (positions or 1)), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "layer",
    [nn.Linear(6, 30), nn.Conv2d(6, 30, 1, bias=False), nn.Linear(6, 3, bias=False)],
    ids=["with a bias", "a convolution", "narrower than the batch"],
)
def test_other_layers_are_projected_as_usual(layer: nn.Module) -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 6, 1, 1) if isinstance(layer, nn.Conv2d) else torch.randn(8, 6)
    memory = taught(layer, x[:2])
    expected = gradients(memory, x, None)
    for ours, theirs in zip(gradients(memory, x, 8), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_outside_the_block_the_model_is_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(6, 30, bias=False))
    memory = taught(model, torch.randn(2, 6))
    with pytest.raises(RuntimeError), StepProjector(memory).through_inputs(4):
        model(torch.randn(4, 7))
    assert "forward" not in vars(model[0])
    x, parameters = torch.randn(4, 6), list(model.parameters())
    (free,) = torch.autograd.grad(model(x).sum(), parameters)
    assert not torch.allclose(free, gradients(memory, x, 4)[0])
