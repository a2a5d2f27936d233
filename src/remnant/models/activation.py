"""What follows a layer: its norm, ReLU, dropout and, after a convolution, 2×2 max-pooling.

As separate operations ReLU, dropout and pooling are seven passes over memory forth and back, a quarter of an AlexNet step.
On a GPU, in training, they are one pass each way. After a fully connected layer the norm is in it too, where it normalises by
the batch: a block of threads holds all of a feature's values, and seven small kernels become one.
"""

from __future__ import annotations

import importlib.util
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BLOCK = 1024
FEATURES = 16  # to a block of threads, with all their rows
MOST_ROWS = 512


class ReluDropout(nn.Module):
    """max(x, 0), each value dropped with probability `rate` in training; `pool`: then the largest of each 2×2."""

    def __init__(self, rate: float, *, pool: bool = False) -> None:
        super().__init__()
        self.rate, self.pool = rate, pool

    def forward(self, x: Tensor, norm: nn.Module | None = None) -> Tensor:
        """Of norm(x), where one is given."""
        fuse = self.training and _can_fuse(x)
        if fuse and norm is not None and _can_normalise(norm, x):
            return cast(Tensor, _Normalised.apply(x, norm.weight, norm.bias, norm.eps, 1 - self.rate))  # type: ignore[no-untyped-call]
        if norm is not None:
            x = norm(x)
        if fuse:
            return cast(Tensor, _Fused.apply(x, 1 - self.rate, self.pool))  # type: ignore[no-untyped-call]
        x = F.dropout(F.relu(x), self.rate, self.training)
        return F.max_pool2d(x, 2) if self.pool else x

    def extra_repr(self) -> str:
        return f"rate={self.rate}" + (", pool=True" if self.pool else "")


def _can_fuse(x: Tensor) -> bool:
    return x.is_cuda and x.dtype == torch.float32 and _has_triton and not torch._C._are_functorch_transforms_active()


def _can_normalise(norm: nn.Module, x: Tensor) -> bool:
    """A norm by the batch over plain rows, that nobody watches."""
    watched = norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks or norm._backward_pre_hooks
    return (
        type(norm) is nn.BatchNorm1d
        and norm.affine
        and not norm.track_running_stats
        and not watched
        and x.ndim == 2
        and 1 < len(x) <= MOST_ROWS
    )


_has_triton = importlib.util.find_spec("triton") is not None


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: float, pool: bool) -> Tensor:
        from . import activation_kernel as kernel

        seed = _seed(x)
        x = _channels_last(x)
        ctx.shape, ctx.keep, ctx.pool = x.shape, keep, pool
        if pool:
            n, c, h, w = x.shape
            y = _empty((n, c, h // 2, w // 2), x)
            kept = torch.empty_like(y, dtype=torch.uint8)
            sizes = (c, h, w, h // 2, w // 2)
            kernel.pooled_forward[_grid(y)](x, y, kept, seed, y.numel(), *sizes, keep, BLOCK=BLOCK)
        else:
            y = torch.empty_like(x)
            kept = torch.empty_like(y, dtype=torch.uint8)
            kernel.plain_forward[_grid(y)](x, y, kept, seed, y.numel(), keep, BLOCK=BLOCK)
        ctx.save_for_backward(kept)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        from . import activation_kernel as kernel

        (kept,) = ctx.saved_tensors
        dy = _channels_last(gradients[0])
        dx = _empty(ctx.shape, dy)
        if ctx.pool:
            _, c, h, w = ctx.shape
            sizes = (c, h, w, h // 2, w // 2)
            kernel.pooled_backward[_grid(dx)](dy, kept, dx, dx.numel(), *sizes, ctx.keep, BLOCK=BLOCK)
        else:
            kernel.plain_backward[_grid(dx)](dy, kept, dx, dx.numel(), ctx.keep, BLOCK=BLOCK)
        return dx, None, None


class _Normalised(torch.autograd.Function):
    """Batch normalisation of rows, ReLU and dropout."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, keep: float) -> Tensor:
        from . import activation_kernel as kernel

        x = x.contiguous()
        rows, features = x.shape
        y = torch.empty_like(x)
        mean, scale = torch.empty_like(weight), torch.empty_like(weight)
        ctx.keep, ctx.held = keep, {"R": max(16, 1 << (rows - 1).bit_length()), "BLOCK": FEATURES}
        kernel.normalised_forward[(-(-features // FEATURES),)](
            x, weight, bias, y, mean, scale, _seed(x), rows, features, eps, keep, **ctx.held
        )
        ctx.save_for_backward(x, y, weight, mean, scale)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        from . import activation_kernel as kernel

        x, y, weight, mean, scale = ctx.saved_tensors
        rows, features = x.shape
        dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
        seen = gradients[0].contiguous(), x, y, weight, mean, scale
        kernel.normalised_backward[(-(-features // FEATURES),)](
            *seen, dx, dweight, dbias, rows, features, ctx.keep, **ctx.held
        )
        return dx, dweight, dbias, None, None


def _seed(x: Tensor) -> Tensor:
    """A tensor, drawn on the device: a captured step draws another each time it is replayed."""
    return torch.randint(2**31 - 1, (1,), device=x.device)


def _grid(tensor: Tensor) -> tuple[int]:
    return (-(-tensor.numel() // BLOCK),)


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x.contiguous()


def _empty(shape: Any, like: Tensor) -> Tensor:
    layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=layout)
