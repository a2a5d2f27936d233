"""Norm, ReLU, dropout and 2×2 max-pooling in one pass over memory per direction, for `remnant.models.ReluDropout`.

As separate operations, ReLU, dropout and pooling make seven passes over memory, which is a quarter of an AlexNet step. The
kernels here include a norm by the batch. After a fully connected layer it needs no further pass, because a block of threads
holds all values of a feature. Before pooling it needs one further pass each way, for the sums over each channel.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from remnant.models import ReluDropout, ResponseNorm

from .cpu_activation import CPUActivation
from .response_norm import fused_response

BLOCK = 1024
FEATURES = 16  # per block of threads, with all their rows
# The most rows a block holds, and the number that smaller batches are rounded up to, so that the last batch of an epoch seldom
# needs another compilation.
LEAST_ROWS, MOST_ROWS = 64, 512
# A norm before pooling: a block of threads takes 16 channels, which are 64 adjacent bytes. When normalising, each of its 128
# threads has four values. With more, the compiler chooses a layout in which a thread's floats do not arrive in one load.
CHANNELS, PARTS = 16, 64
WINDOWS, ROWS = 32, 128  # per block: windows that it normalises, rows that it adds up at a time
LEAST = 64  # rows of a part, unless there are fewer
NORMALISING = {"PARTS": PARTS, "WINDOWS": WINDOWS, "BLOCK": CHANNELS, "num_warps": 4}
SUMMING = {"PARTS": PARTS, "ROWS": ROWS, "BLOCK": CHANNELS, "num_warps": 4}

_has_triton = importlib.util.find_spec("triton") is not None


@cache
def _kernels() -> Any:
    return importlib.import_module(".activation_kernels", __package__)  # imports triton, which not every machine has


def fuse_activations(network: nn.Module) -> None:
    """Makes every `ReluDropout` and `ResponseNorm` use a faster form where one applies: in float32, dropout in training.

    Dropout then draws other random numbers than PyTorch's, from the same distribution.
    """
    for module in network.modules():
        if isinstance(module, ReluDropout):
            module.fused = _fused_activation
        elif isinstance(module, ResponseNorm) and _has_triton:
            module.fused = fused_response


def _fused_activation(layer: ReluDropout, x: Tensor, norm: nn.Module | None) -> Tensor | None:
    """The layer's output, or None where no kernel applies."""
    applies = layer.training and 0 <= layer.rate < 1 and x.dtype == torch.float32
    if not applies or torch._C._are_functorch_transforms_active():
        return None
    keep = 1 - layer.rate
    if x.device.type == "cpu":
        return cast(Tensor, CPUActivation.apply(x if norm is None else norm(x), keep, layer.pool))  # type: ignore[no-untyped-call]
    if not (x.is_cuda and _has_triton):
        return None
    if norm is not None and _can_normalise(norm, x, layer.pool):
        operation = NormalisedPool if layer.pool else Normalised
        return cast(Tensor, operation.apply(x, norm.weight, norm.bias, _seed(x), norm.eps, keep))  # type: ignore[no-untyped-call]
    x = x if norm is None else norm(x)
    return cast(Tensor, _Fused.apply(x, _seed(x), keep, layer.pool))  # type: ignore[no-untyped-call]


def _can_normalise(norm: nn.Module, x: Tensor, pool: bool) -> bool:
    """Whether `norm` is a batch norm without hooks, over rows or, before pooling, over images of at least 2×2."""
    if type(norm) is nn.BatchNorm2d:
        fits = pool and x.ndim == 4 and len(x) > 0 and min(x.shape[2:]) > 1
    elif type(norm) is nn.BatchNorm1d:
        fits = not pool and x.ndim == 2 and 1 < len(x) <= MOST_ROWS
    else:
        return False
    has_hooks = norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks or norm._backward_pre_hooks
    return fits and norm.affine and not norm.track_running_stats and not has_hooks and norm.num_features == x.shape[1]


class _Fused(torch.autograd.Function):
    """ReLU, dropout and, with `pool`, 2×2 max-pooling."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seed: Tensor, keep: float, pool: bool) -> Tensor:
        x = _channels_last(x)
        ctx.shape, ctx.keep, ctx.pool = x.shape, keep, pool
        if pool:
            n, c, h, w = x.shape
            y = _empty((n, c, h // 2, w // 2), x)
            kept = torch.empty_like(y, dtype=torch.uint8)
            sizes = (c, h, w, h // 2, w // 2)
            _kernels().pooled_forward[_grid(y)](x, y, kept, seed, y.numel(), *sizes, keep, BLOCK=BLOCK)
        else:
            y = torch.empty_like(x)
            kept = torch.empty_like(y, dtype=torch.uint8)
            _kernels().plain_forward[_grid(y)](x, y, kept, seed, y.numel(), keep, BLOCK=BLOCK)
        ctx.save_for_backward(kept)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (kept,) = ctx.saved_tensors
        dy = _channels_last(gradients[0])
        dx = _empty(ctx.shape, dy)
        if ctx.pool:
            _, c, h, w = ctx.shape
            sizes = (c, h, w, h // 2, w // 2)
            _kernels().pooled_backward[_grid(dx)](dy, kept, dx, dx.numel(), *sizes, ctx.keep, BLOCK=BLOCK)
        else:
            _kernels().plain_backward[_grid(dx)](dy, kept, dx, dx.numel(), ctx.keep, BLOCK=BLOCK)
        return dx, None, None, None


class Normalised(torch.autograd.Function):
    """Batch normalisation of rows, ReLU and dropout."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, seed: Tensor, eps: float, keep: float) -> Tensor:
        x = x.contiguous()
        rows, features = x.shape
        y = torch.empty_like(x)
        mean, scale = torch.empty_like(weight), torch.empty_like(weight)
        ctx.keep, ctx.grid = keep, (-(-features // FEATURES),)
        ctx.sizes = {"R": max(LEAST_ROWS, 1 << (rows - 1).bit_length()), "BLOCK": FEATURES}
        given, made = (x, weight, bias), (y, mean, scale)
        _kernels().normalised_forward[ctx.grid](*given, *made, seed, rows, features, eps, keep, **ctx.sizes)
        ctx.save_for_backward(x, y, weight, mean, scale)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        x, y, weight, mean, scale = ctx.saved_tensors
        given = gradients[0].contiguous(), x, y, weight, mean, scale
        made = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
        _kernels().normalised_backward[ctx.grid](*given, *made, *x.shape, ctx.keep, **ctx.sizes)
        return *made, None, None, None


class NormalisedPool(torch.autograd.Function):
    """Batch normalisation of images, ReLU, dropout and 2×2 max-pooling."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, seed: Tensor, eps: float, keep: float) -> Tensor:
        x = _channels_last(x)
        n, c, h, w = x.shape
        rows, windows = n * h * w, n * (h // 2) * (w // 2)
        y = _empty((n, c, h // 2, w // 2), x)
        normal, kept = torch.empty_like(y), torch.empty_like(y, dtype=torch.uint8)
        mean, scale = torch.empty_like(weight), torch.empty_like(weight)
        sums = x.new_empty(2 * PARTS, c)
        parts, share = _split(rows)
        _kernels().value_parts[_blocks(parts, c)](x, sums, rows, share, c, **SUMMING)
        given, made = (x, weight, bias, sums, seed), (y, normal, kept, mean, scale)
        _kernels().norm_pool_forward[_blocks(-(-windows // WINDOWS), c)](
            *given, *made, windows, rows, share, parts, c, h, w, eps, keep, **NORMALISING
        )
        ctx.keep = keep
        ctx.save_for_backward(x, normal, kept, weight, mean, scale)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        x, normal, kept, weight, mean, scale = ctx.saved_tensors
        dy = _channels_last(gradients[0])
        n, c, h, w = x.shape
        windows, cells = n * (h // 2) * (w // 2), n * -(-h // 2) * -(-w // 2)
        sums = x.new_empty(2 * PARTS, c)
        parts, share = _split(windows)
        _kernels().gradient_parts[_blocks(parts, c)](dy, normal, sums, windows, share, c, ctx.keep, **SUMMING)
        given = dy, x, kept, weight, mean, scale, sums
        made = _empty(x.shape, x), torch.empty_like(weight), torch.empty_like(weight)
        _kernels().norm_pool_backward[_blocks(-(-cells // WINDOWS), c)](
            *given, *made, cells, n * h * w, parts, c, h, w, ctx.keep, **NORMALISING
        )
        return *made, None, None, None


def _split(rows: int) -> tuple[int, int]:
    """Splits rows into at most PARTS parts: their number, and the rows of each part but the last. No part is empty."""
    share = max(LEAST, -(-rows // PARTS))
    return -(-rows // share), share


def _blocks(tiles: int, channels: int) -> tuple[int]:
    return (tiles * -(-channels // CHANNELS),)


def _grid(tensor: Tensor) -> tuple[int]:
    return (-(-tensor.numel() // BLOCK),)


def _seed(x: Tensor) -> Tensor:
    """Drawn on the device, so that each replay of a captured step draws another seed."""
    return torch.randint(2**31 - 1, (1,), device=x.device)


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x.contiguous()


def _empty(shape: Any, like: Tensor) -> Tensor:
    layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=layout)
