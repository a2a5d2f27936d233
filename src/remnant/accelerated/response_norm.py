"""Local response normalisation on a GPU in one pass over memory per direction, for `remnant.models.ResponseNorm`.

As separate operations it makes seven passes forward and six back.
"""

from __future__ import annotations

import importlib
from typing import Any, cast

import torch
from torch import Tensor

from remnant.models import ResponseNorm

BLOCK = 1024  # values per block of threads


def fused_response(norm: ResponseNorm, x: Tensor) -> Tensor | None:
    """The norm's output, or None where no kernel applies."""
    if not x.is_cuda or x.ndim != 4 or x.dtype != torch.float32 or torch._C._are_functorch_transforms_active():
        return None
    return cast(Tensor, _Response.apply(x, norm))  # type: ignore[no-untyped-call]


class _Response(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: ResponseNorm) -> Tensor:
        ctx.norm = norm
        ctx.save_for_backward(x)
        return _run("response_forward", norm, x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # a gradient of the gradient is wanted, and the kernels have none
            return torch.autograd.grad(ctx.norm.formula(x), x, gradients[0], create_graph=True)[0], None
        return _run("response_backward", ctx.norm, gradients[0], x), None


def _run(kernel: str, norm: ResponseNorm, *given: Tensor) -> Tensor:
    # imports triton, which not every machine has
    kernels: Any = importlib.import_module(".response_kernels", __package__)
    given = tuple(tensor.contiguous(memory_format=torch.channels_last) for tensor in given)
    made = torch.empty_like(given[0])
    sizes = made.numel(), made.shape[1], norm.scale
    window = {"BEFORE": norm.size // 2, "AFTER": (norm.size - 1) // 2}
    getattr(kernels, kernel)[(-(-made.numel() // BLOCK),)](*given, made, *sizes, **window, BLOCK=BLOCK)
    return made
