"""The fused kernels compute the same as norm, ReLU, dropout and pooling one after the other."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from remnant.accelerated import fuse_activations
from remnant.accelerated.cpu_activation import random_mask
from remnant.accelerated.norm_pool import PARTS, _split
from remnant.models import ReluDropout

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SHAPES = [((3, 5, 7, 9), True), ((64, 64, 29, 29), True), ((2, 8, 6, 6), False), ((64, 2048), False)]


def fused(rate: float, *, pool: bool = False) -> ReluDropout:
    """A layer that uses the kernels."""
    layer = ReluDropout(rate, pool=pool)
    fuse_activations(layer)
    return layer


def plain(x: Tensor, pool: bool) -> Tensor:
    return F.max_pool2d(F.relu(x), 2) if pool else F.relu(x)


@pytest.mark.parametrize(("shape", "pool"), SHAPES)
def test_in_evaluation_mode_nothing_is_dropped(shape: tuple[int, ...], pool: bool) -> None:
    x = torch.randn(shape)
    assert torch.equal(ReluDropout(0.5, pool=pool).eval()(x), plain(x, pool))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("shape", "pool"), SHAPES)
def test_without_dropout_it_equals_relu_and_pooling(shape: tuple[int, ...], pool: bool, device: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, device=device, requires_grad=True)
    ours, theirs = fused(0.0, pool=pool)(x), plain(x, pool)
    assert ours.grad_fn is not None
    assert ("CPUActivation" if device == "cpu" else "Fused") in ours.grad_fn.name()
    gradient = torch.randn_like(theirs)
    assert torch.equal(ours, theirs)
    assert torch.equal(*(torch.autograd.grad(y, x, gradient)[0] for y in (ours, theirs)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("shape", "pool"), SHAPES)
def test_with_dropout_the_gradient_goes_where_the_values_came_from(
    shape: tuple[int, ...], pool: bool, device: str
) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, device=device, requires_grad=True)
    y = fused(0.25, pool=pool)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    came = gradient != 0
    assert torch.equal(gradient[came].unique(), torch.tensor([1 / 0.75], device=device))
    assert int(came.sum()) == int((y > 0).sum())
    values = x.detach()[came].sort().values / 0.75
    torch.testing.assert_close(values, y.detach()[y > 0].sort().values)


@pytest.mark.parametrize("device", DEVICES)
def test_each_value_is_dropped_independently_with_the_given_probability(device: str) -> None:
    torch.manual_seed(0)
    x = torch.ones(1000, 1000, device=device)
    layer = fused(0.3)
    first, second = (layer(x) > 0 for _ in range(2))
    for kept in (first, second):
        assert kept.float().mean().item() == pytest.approx(0.7, abs=0.003)  # six standard deviations
    assert (first & second).float().mean().item() == pytest.approx(0.49, abs=0.003)
    torch.manual_seed(0)
    assert torch.equal(layer(x) > 0, first)


@pytest.mark.parametrize("device", DEVICES)
def test_nan_stays_nan(device: str) -> None:
    for pool in (True, False):
        x = torch.zeros(1, 2, 4, 4, device=device)
        x[0, 0, 1, 1] = float("nan")
        assert fused(0.0, pool=pool)(x).isnan().any()


def test_a_cpu_draws_masks_in_the_layout_of_the_images() -> None:
    torch.manual_seed(0)
    images = torch.ones(8, 16, 15, 15).to(memory_format=torch.channels_last)
    mask = random_mask(images, 0.8)
    assert mask.stride() == images.stride()
    shares = mask.float().mean((1, 2, 3)), mask.float().mean((0, 2, 3)), mask.float().mean((0, 1))
    for share, values in zip(shares, (16 * 225, 8 * 225, 8 * 16), strict=True):
        assert share.sub(0.8).abs().max() < 5 * (0.16 / values) ** 0.5


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
    ours = fused(rate)(x, norm)
    assert ours.grad_fn is not None
    assert "Normalised" in ours.grad_fn.name()
    gradient = torch.randn_like(ours)
    found = torch.autograd.grad(ours, [x, norm.weight, norm.bias], gradient)
    normed = norm.double()(x.double())
    theirs = torch.where(ours > 0, normed / (1 - rate), 0.0)  # which positive values were kept is random
    clear = normed.abs() > 1e-4
    assert not ((ours > 0) & (normed < 0) & clear).any()
    assert rate or ((ours > 0) == (normed > 0))[clear].all()
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)
    expected = torch.autograd.grad(theirs, [x, norm.weight, norm.bias], gradient.double())
    for a, b in list(zip(found, expected, strict=True))[rows == 2 :]:  # two rows become ±1, so dx is only rounding
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-3, atol=1e-3 * float(b.abs().max()))


@pytest.mark.gpu
@pytest.mark.parametrize("pool", [True, False])
def test_a_norm_with_hooks_is_called(pool: bool) -> None:
    norm, seen = before_pooling(8, "cuda") if pool else by_the_batch(8, "cuda"), []
    norm.register_forward_hook(lambda *_: seen.append(1))
    fused(0.5, pool=pool)(torch.randn((4, 8, 4, 4) if pool else (4, 8), device="cuda"), norm)
    assert seen


def before_pooling(channels: int, device: str = "cpu") -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, track_running_stats=False, device=device)
    with torch.no_grad():
        norm.weight.uniform_(-1, 2)
        norm.weight[0] = 0  # all values of this channel are then equal
        norm.bias.normal_()
    return norm


def drawn(layer: ReluDropout, shape: tuple[int, ...], seed: int) -> Tensor:
    """Which values the layer keeps with this seed, found by showing it one corner of the windows at a time."""
    kept = torch.zeros(shape, device="cuda")
    height, width = shape[2] // 2 * 2, shape[3] // 2 * 2
    for k in range(4):
        corner = torch.zeros(shape, device="cuda")
        corner[:, :, k // 2 : height : 2, k % 2 : width : 2] = 1
        torch.manual_seed(seed)
        kept[:, :, k // 2 : height : 2, k % 2 : width : 2] = layer(corner) > 0
    return kept


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(64, 64, 29, 29), (64, 128, 12, 12), (64, 256, 5, 5), (3, 5, 7, 9), (2, 20, 2, 3)])
@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_a_norm_by_the_batch_before_pooling(shape: tuple[int, ...], rate: float) -> None:
    torch.manual_seed(0)
    norm, layer = before_pooling(shape[1], "cuda"), fused(rate, pool=True)
    x = (torch.randint(-60, 60, shape, device="cuda") / 16 + 5).requires_grad_()  # values are equal or clearly apart
    kept = drawn(layer, shape, seed=1)
    torch.manual_seed(1)
    ours = layer(x, norm)
    assert ours.grad_fn is not None
    assert "NormalisedPool" in ours.grad_fn.name()
    gradient = torch.randn_like(ours)
    found = torch.autograd.grad(ours, [x, norm.weight, norm.bias], gradient)
    theirs = F.max_pool2d(F.relu(norm.double()(x.double())) * kept / (1 - rate), 2)
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)
    expected = torch.autograd.grad(theirs, [x, norm.weight, norm.bias], gradient.double())
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-4, atol=1e-5 * float(b.abs().max()))


@pytest.mark.gpu
def test_before_pooling_too_each_value_is_dropped_independently() -> None:
    torch.manual_seed(0)
    norm, layer = before_pooling(64, "cuda"), fused(0.5, pool=True)
    nn.init.zeros_(norm.weight)
    nn.init.ones_(norm.bias)
    x = torch.randn(64, 64, 30, 30, device="cuda")
    first, second = (layer(x, norm) for _ in range(2))
    assert torch.equal(first.unique(), torch.tensor([0.0, 2.0], device="cuda"))
    for y in (first, second):
        assert (y == 0).float().mean().item() == pytest.approx(1 / 16, abs=0.0015)  # six standard deviations
    assert ((first == 0) & (second == 0)).float().mean().item() == pytest.approx(1 / 256, abs=0.0004)


@pytest.mark.gpu
def test_a_norm_before_pooling_is_the_same_bit_for_bit_each_time() -> None:
    norm, layer = before_pooling(64, "cuda"), fused(0.2, pool=True)
    x = torch.randn(64, 64, 29, 29, device="cuda", requires_grad=True)
    gradient = torch.randn(64, 64, 14, 14, device="cuda")
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        y = layer(x, norm)
        results.append([y, *torch.autograd.grad(y, [x, norm.weight, norm.bias], gradient)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.gpu
def test_a_norm_before_pooling_of_values_far_from_zero_loses_no_digits_of_their_variance() -> None:
    torch.manual_seed(0)
    norm = before_pooling(16, "cuda")
    x = torch.randn(8, 16, 29, 29, device="cuda") + 1000  # a float32 sum of squares would be off by a few per cent
    theirs = F.max_pool2d(F.relu(norm.double()(x.double())), 2)
    ours = fused(0.0, pool=True)(x, norm.float())
    torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-3)


@pytest.mark.gpu
def test_a_frozen_norm_before_pooling_passes_the_gradient_on() -> None:
    torch.manual_seed(0)
    norm, layer = before_pooling(8, "cuda"), fused(0.0, pool=True)
    x = torch.randn(4, 8, 5, 5, device="cuda", requires_grad=True)
    (free,) = torch.autograd.grad(layer(x, norm).square().sum(), x)
    norm.requires_grad_(False)
    assert torch.equal(torch.autograd.grad(layer(x, norm).square().sum(), x)[0], free)


@pytest.mark.gpu
def test_nan_stays_in_its_channel_in_a_norm_before_pooling() -> None:
    for bad in (float("nan"), float("inf")):
        norm, x = before_pooling(3, "cuda"), torch.randn(2, 3, 4, 4, device="cuda")
        x[1, 1, 2, 3] = bad
        y = fused(0.0, pool=True)(x, norm)
        assert y[:, 1].isnan().all()
        assert y[:, [0, 2]].isfinite().all()


@given(st.integers(1, 10**7))
def test_rows_are_split_into_parts_that_are_not_empty(rows: int) -> None:
    parts, share = _split(rows)
    assert 1 <= parts <= PARTS
    assert (parts - 1) * share < rows <= parts * share
