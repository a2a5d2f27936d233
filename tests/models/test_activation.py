"""One pass over memory gives what ReLU, dropout and pooling give one after the other."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


def by_the_batch(features: int, device: str = "cpu") -> nn.BatchNorm1d:
    norm = nn.BatchNorm1d(features, track_running_stats=False, device=device)
    with torch.no_grad():
        norm.weight.uniform_(-1, 2)
        norm.bias.normal_()
    return norm


def test_a_norm_comes_first() -> None:
    torch.manual_seed(0)
    norm, x = by_the_batch(8), torch.randn(5, 8)
    assert torch.equal(ReluDropout(0.0)(x, norm), F.relu(norm(x)))


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "features"), [(64, 2048), (56, 37), (2, 16), (512, 100)])
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_a_norm_by_the_batch_in_the_same_pass(rows: int, features: int, rate: float) -> None:
    torch.manual_seed(0)
    norm = by_the_batch(features, "cuda")
    x = torch.randn(rows, features, device="cuda").mul_(3).add_(5).requires_grad_()
    ours = ReluDropout(rate)(x, norm)
    assert ours.grad_fn is not None
    assert "Normalised" in ours.grad_fn.name()
    gradient = torch.randn_like(ours)
    found = torch.autograd.grad(ours, [x, norm.weight, norm.bias], gradient)
    normed = norm.double()(x.double())
    theirs = torch.where(ours > 0, normed / (1 - rate), 0.0)  # which of the positive ones it kept is its own choice
    clear = normed.abs() > 1e-4
    assert not ((ours > 0) & (normed < 0) & clear).any()
    assert rate or ((ours > 0) == (normed > 0))[clear].all()
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)
    expected = torch.autograd.grad(theirs, [x, norm.weight, norm.bias], gradient.double())
    for a, b in list(zip(found, expected, strict=True))[rows == 2 :]:  # two rows become ±1: dx is rounding alone
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-3, atol=1e-3 * float(b.abs().max()))


@pytest.mark.gpu
def test_a_norm_that_someone_watches_is_called() -> None:
    norm, seen = by_the_batch(8, "cuda"), []
    norm.register_forward_hook(lambda *_: seen.append(1))
    ReluDropout(0.5)(torch.randn(4, 8, device="cuda"), norm)
    assert seen
