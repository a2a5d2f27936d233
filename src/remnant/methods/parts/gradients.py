"""Gradients of all parameters as one vector, and gradients that are vectorised over batches."""

from collections.abc import Sequence

import torch
from torch import Tensor


def flat(tensors: Sequence[Tensor], *, batch: int = 0) -> Tensor:
    """Concatenates all entries; the first `batch` dimensions stay."""
    return torch.cat([tensor.flatten(batch) for tensor in tensors], dim=-1)


def shaped(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Undoes `flat`: views of the vector with the shapes of `like`."""
    parts = vector.split([tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def default_layout(tensor: Tensor) -> Tensor:
    """Copies a convolution's weight or input into PyTorch's default layout, for use inside `vmap`.

    With channels-last tensors, cuDNN's batch norm takes a derivative for which `vmap` has no rule. `contiguous()` is not
    enough: 1×1 filters count as contiguous and keep channels-last strides.
    """
    return tensor.clone(memory_format=torch.contiguous_format)
