"""One pass over memory gives what ReLU, dropout and pooling give one after the other."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from remnant.models.activation import ReluDropout

SHAPES = [((3, 5, 7, 9), True), ((64, 64, 29, 29), True), ((2, 8, 6, 6), False), ((64, 2048), False)]


def plain(x: Tensor, pool: bool) -> Tensor:
    return F.max_pool2d(F.relu(x), 2) if pool else F.relu(x)


@pytest.mark.parametrize(("shape", "pool"), SHAPES)
def test_at_test_nothing_is_dropped(shape: tuple[int, ...], pool: bool) -> None:
    x = torch.randn(shape)
    assert torch.equal(ReluDropout(0.5, pool=pool).eval()(x), plain(x, pool))


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "pool"), SHAPES)
def test_without_dropout_it_is_relu_and_pooling(shape: tuple[int, ...], pool: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, device="cuda", requires_grad=True)
    ours, theirs = ReluDropout(0.0, pool=pool)(x), plain(x, pool)
    assert ours.grad_fn is not None
    assert "Fused" in ours.grad_fn.name()
    gradient = torch.randn_like(theirs)
    assert torch.equal(ours, theirs)
    assert torch.equal(*(torch.autograd.grad(y, x, gradient)[0] for y in (ours, theirs)))


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "pool"), SHAPES)
def test_with_dropout_the_gradient_goes_where_the_values_came_from(shape: tuple[int, ...], pool: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, device="cuda", requires_grad=True)
    y = ReluDropout(0.25, pool=pool)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    came = gradient != 0
    assert torch.equal(gradient[came].unique(), torch.tensor([1 / 0.75], device="cuda"))
    assert int(came.sum()) == int((y > 0).sum())
    values = x.detach()[came].sort().values / 0.75
    torch.testing.assert_close(values, y.detach()[y > 0].sort().values)


@pytest.mark.gpu
def test_each_value_is_dropped_with_the_given_probability_and_anew_each_time() -> None:
    torch.manual_seed(0)
    x = torch.ones(1000, 1000, device="cuda")
    layer = ReluDropout(0.3)
    first, second = (layer(x) > 0 for _ in range(2))
    for kept in (first, second):
        assert kept.float().mean().item() == pytest.approx(0.7, abs=0.003)  # six standard deviations
    assert (first & second).float().mean().item() == pytest.approx(0.49, abs=0.003)
    torch.manual_seed(0)
    assert torch.equal(layer(x) > 0, first)


@pytest.mark.gpu
def test_what_is_no_number_stays_none() -> None:
    for pool in (True, False):
        x = torch.zeros(1, 2, 4, 4, device="cuda")
        x[0, 0, 1, 1] = float("nan")
        assert ReluDropout(0.0, pool=pool)(x).isnan().any()
