"""Averaged GEM (Chaudhry et al., 2019): never step uphill on a random batch of remembered examples."""

from typing import Any

import torch
from torch import Tensor

from remnant.models import Network
from remnant.options import Positive

from .parts.gradients import flat, unflat
from .parts.replay import Episodic


class AGEM(Episodic):
    """Steps along g if gᵀr ≥ 0, else along g − (gᵀr/rᵀr)·r, where r is the gradient on a batch from memory.

    The stream's tasks share the `memory` evenly. The `memory_batch` mixes all past tasks, so batch normalisation sees them
    mixed. The first task is plain SGD.
    """

    name = "agem"

    def __init__(self, network: Network, *, memory_batch: Positive = 256, **options: Any) -> None:
        super().__init__(network, **options)
        self.memory_batch = memory_batch

    def gradients(self, loss: Tensor) -> dict[Tensor, Tensor]:
        g = super().gradients(loss)
        if not len(self.memory):
            return g
        reference_loss = self.mixed_loss(*self.memory.draw(self.memory_batch))
        r = super().gradients(reference_loss)
        step = self.combined(flat(g.values()), flat(r.values()), loss.detach(), reference_loss.detach())
        return unflat(step, list(g))

    def combined(self, gradient: Tensor, reference: Tensor, loss: Tensor, reference_loss: Tensor) -> Tensor:
        """Returns the direction of the step, from the gradients and losses of the batch and of the memory batch."""
        return without_conflict(gradient, reference)


def without_conflict(gradient: Tensor, reference: Tensor) -> Tensor:
    """g − (min(gᵀr, 0)/rᵀr)·r: a clamp replaces the paper's `if`, so that the step stays on the device."""
    product, square = torch.linalg.vecdot(torch.stack([gradient, reference]), reference)
    tiny = torch.finfo(square.dtype).tiny  # a zero reference conflicts with nothing
    return gradient.addcmul(product.clamp(max=0) / square.clamp(min=tiny), reference, value=-1)
