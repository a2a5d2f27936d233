"""How tensors must lie in memory for gradients that are vectorised over batches."""

from __future__ import annotations

import torch
from torch import Tensor


def default_layout(tensor: Tensor) -> Tensor:
    """A copy in PyTorch's default layout, for what a convolution sees inside `vmap`: its weight and its input.

    On a GPU weights lie channels-last, and what a convolution makes lies so if either of the two does. The derivative of
    cuDNN's batch norm then copies the gradient into that layout, for which `vmap` has no rule. `contiguous()` is not
    enough: 1×1 filters are contiguous either way, and it would leave them the strides that say channels-last.
    """
    return tensor.clone(memory_format=torch.contiguous_format)
