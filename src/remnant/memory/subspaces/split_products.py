"""Products of float32 matrices as sums of three TF32 products of split numbers, with the signatures of torch's.

Each factor is split into the part that TF32 can hold and the rest. The product of the two rests is left out, because it is
smaller than float32's rounding.
A large product takes less than half the time this way, and is as precise.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

LOW_BITS = 13  # of float32's mantissa, which TF32 does not hold
CUBLAS: Any = torch.backends.cuda.matmul


def bmm(x: Tensor, y: Tensor, *, out: Tensor | None = None) -> Tensor:
    """x·y."""
    (high, low), (main, rest) = split(x), split(y)
    with _tf32():
        made = torch.bmm(high, main, out=out)
        made = torch.baddbmm(made, low, main, out=made)
        return torch.baddbmm(made, high, rest, out=made)


def baddbmm(base: Tensor, x: Tensor, y: Tensor, *, alpha: int = 1, out: Tensor | None = None) -> Tensor:
    """base + α·x·y."""
    (high, low), (main, rest) = split(x), split(y)
    with _tf32():
        made = torch.baddbmm(base, high, main, alpha=alpha, out=out)
        made = torch.baddbmm(made, low, main, alpha=alpha, out=made)
        return torch.baddbmm(made, high, rest, alpha=alpha, out=made)


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    """x as a sum of what TF32 holds of it, and the rest."""
    high = (x.view(torch.int32) & -(1 << LOW_BITS)).view(torch.float32)
    return high, x - high


def fit(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether tensors like these can be multiplied this way: torch has a switch for TF32, and the GPU has TF32."""
    if dtype != torch.float32 or device.type != "cuda" or torch.version.hip or not hasattr(CUBLAS, "fp32_precision"):
        return False
    return torch.cuda.get_device_capability(device)[0] >= 8


@contextmanager
def _tf32() -> Iterator[None]:
    before = CUBLAS.fp32_precision
    CUBLAS.fp32_precision = "tf32"
    try:
        yield
    finally:
        CUBLAS.fp32_precision = before
