"""Gradients of all parameters as one vector: one inner product instead of one per layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def flat(tensors: Sequence[Tensor], *, batch: int = 0) -> Tensor:
    """All entries one after the other; the first `batch` dimensions stay."""
    return torch.cat([tensor.flatten(batch) for tensor in tensors], dim=-1)


def shaped(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """What `flat` was given: views of the vector in the shapes of `like`."""
    parts = vector.split([tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]
