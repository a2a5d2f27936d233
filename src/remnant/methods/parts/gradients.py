"""Gradients of all parameters as one vector, and gradients that are vectorised over batches."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

TINY = 1e-12


def flat(tensors: Iterable[Tensor], *, batch: int = 0) -> Tensor:
    """Concatenates all entries; the first `batch` dimensions stay."""
    return torch.cat([tensor.flatten(batch) for tensor in tensors], dim=-1)


def unflat(vector: Tensor, parameters: Sequence[Tensor]) -> dict[Tensor, Tensor]:
    """Undoes `flat`: each parameter's part of the vector, in its shape."""
    parts = vector.split([parameter.numel() for parameter in parameters])
    return {parameter: part.view(parameter.shape) for parameter, part in zip(parameters, parts, strict=True)}


def joint_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Returns the norm of all gradients together, and never 0, because it is there to divide by."""
    return torch.stack(torch._foreach_norm(list(gradients))).norm().clamp(min=TINY)


def clipped(gradients: Sequence[Tensor], limit: float) -> list[Tensor]:
    """Scales all gradients by one factor so that their joint norm is at most `limit`."""
    return list(torch._foreach_mul(list(gradients), (limit / joint_norm(gradients)).clamp(max=1)))


def default_layout(tensor: Tensor) -> Tensor:
    """Copies a convolution's weight or input into PyTorch's default layout, for use inside `vmap`.

    With channels-last tensors, cuDNN's batch norm takes a derivative for which `vmap` has no rule. `contiguous()` is not
    enough: 1×1 filters count as contiguous and keep channels-last strides.
    """
    return tensor.clone(memory_format=torch.contiguous_format)
