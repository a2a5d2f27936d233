"""The operations after a layer: its norm, ReLU, dropout and, after a convolution, 2×2 max-pooling."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

FusedForm = Callable[["ReluDropout", Tensor, nn.Module | None], Tensor | None]


class ReluDropout(nn.Module):
    """max(x, 0), where training drops each value with probability `rate`.

    Args:
        rate: the probability.
        pool: whether 2×2 max-pooling follows.
    """

    fused: FusedForm | None = None  # a faster form of `forward`, set by `remnant.accelerated.fuse_activations`

    def __init__(self, rate: float, *, pool: bool = False) -> None:
        super().__init__()
        self.rate, self.pool = rate, pool

    def forward(self, x: Tensor, norm: nn.Module | None = None) -> Tensor:
        """Applies `norm` to x first, if there is one."""
        if self.fused is not None and (done := self.fused(self, x, norm)) is not None:
            return done
        if norm is not None:
            x = norm(x)
        x = F.dropout(F.relu(x), self.rate, self.training)
        return F.max_pool2d(x, 2) if self.pool else x

    def extra_repr(self) -> str:
        return f"rate={self.rate}" + (", pool=True" if self.pool else "")
