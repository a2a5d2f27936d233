"""ReLU, dropout and 2×2 max-pooling on a CPU, for `remnant.models.ReluDropout`.

PyTorch draws one random number per value, which alone takes a third of an AlexNet step. Here one draw serves four values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LEVELS = 2**16  # values of the 16 random bits that decide on one activation


class CPUActivation(torch.autograd.Function):
    """ReLU, dropout and, with `pool`, 2×2 max-pooling."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: float, pool: bool) -> Tensor:
        y = x.relu()
        if keep < 1:
            y.mul_(random_mask(y, keep))
        indices = None
        if pool:
            y, indices = torch.ops.aten.max_pool2d_with_indices(y, [2, 2])
        y.div_(keep)
        ctx.keep = keep
        ctx.save_for_backward(y, x if pool else None, indices)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        y, x, indices = ctx.saved_tensors
        # An output above 0 was neither cut off by ReLU nor dropped, so the mask is not needed again.
        gradient = torch.ops.aten.threshold_backward(gradients[0], y, 0).div_(ctx.keep)
        if indices is not None:  # x gives the shape and the memory layout
            gradient = torch.ops.aten.max_pool2d_with_indices_backward(
                gradient, x, [2, 2], [], [0, 0], [1, 1], False, indices
            )
        return gradient, None, None


def random_mask(like: Tensor, keep: float) -> Tensor:
    """Returns a mask with the shape and memory layout of a dense tensor, True with probability `keep` (to 2⁻¹⁶)."""
    draws = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = draws.view(torch.int16)[: like.numel()].as_strided(like.shape, like.stride())
    return bits < round(keep * LEVELS) - LEVELS // 2
