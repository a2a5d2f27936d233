"""Local response normalisation by kernels equals torch's, with its gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from remnant.accelerated import fuse_activations
from remnant.accelerated.response_norm import fused_response
from remnant.models import ResponseNorm, build

gpu = pytest.mark.gpu
SHAPES = [(4, 20, 5), (4, 50, 3), (3, 7, 4), (5, 3, 2), (1, 1, 3), (2, 16, 9)]  # window, channels, width


def images(channels: int, width: int, **how: Any) -> Tensor:
    return torch.randn(3, channels, 6, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(**how)


@gpu
@pytest.mark.parametrize(("size", "channels", "width"), SHAPES)
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_outputs_and_gradients_are_torchs(size: int, channels: int, width: int, layout: torch.memory_format) -> None:
    norm, theirs = ResponseNorm(size, alpha=2.0), nn.LocalResponseNorm(size, alpha=2.0, beta=0.75, k=1)
    exact, weights = images(channels, width, device="cuda").requires_grad_(), images(channels, width, device="cuda")
    x = exact.detach().float().to(memory_format=layout).requires_grad_()
    y = fused_response(norm, x)
    assert y is not None
    expected = theirs(exact)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-6)
    (dx,), (wanted,) = (
        torch.autograd.grad((y * weights).sum(), x),
        torch.autograd.grad((expected * weights).sum(), exact),
    )
    torch.testing.assert_close(dx.double(), wanted, rtol=1e-5, atol=1e-5)


@gpu
def test_a_gradient_of_the_gradient_is_that_of_the_formula() -> None:
    norm, x = ResponseNorm(4, alpha=2.0), images(5, 4, device="cuda", dtype=torch.float32).requires_grad_()
    found = []
    for y in (fused_response(norm, x), norm.formula(x)):
        assert y is not None
        (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(dx.square().sum(), x)[0])
    torch.testing.assert_close(*found)


@gpu
def test_a_lenet_uses_it_in_training_and_at_test() -> None:
    network = build("lenet", input_shape=(3, 32, 32), classes=[5], seed=0, width=4).cuda()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1)).cuda()
    expected = network(x, 0)
    fuse_activations(network)
    assert network.response_norm.fused is fused_response
    torch.testing.assert_close(network(x, 0), expected, rtol=1e-3, atol=1e-3)  # the products round to TF32
    torch.testing.assert_close(network.eval()(x, 0), expected, rtol=1e-3, atol=1e-3)


def test_a_cpu_keeps_the_formula() -> None:
    norm = ResponseNorm(4, alpha=2.0)
    assert fused_response(norm, images(5, 4, dtype=torch.float32)) is None
