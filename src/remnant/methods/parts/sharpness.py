"""Sharpness-aware steps (Foret et al., 2021): the gradient is taken where the loss is higher, a small way uphill."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

TINY = 1e-12


def uphill(gradients: Sequence[Tensor], radius: float) -> list[Tensor]:
    """Returns radius·g/‖g‖, where g are all gradients together."""
    length = torch.stack(torch._foreach_norm(list(gradients))).norm()
    return list(torch._foreach_mul(list(gradients), radius / length.clamp(min=TINY)))


@contextmanager
def ascended(parameters: Sequence[Tensor], gradients: Sequence[Tensor], radius: float) -> Iterator[None]:
    """Inside the block, the parameters have moved uphill by `radius`. Afterwards they have their values again."""
    weights = [parameter.detach() for parameter in parameters]
    before = [weight.clone() for weight in weights]
    torch._foreach_add_(weights, uphill(gradients, radius))
    try:
        yield
    finally:
        torch._foreach_copy_(weights, before)
