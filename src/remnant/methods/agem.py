"""Averaged GEM (Chaudhry et al., 2019): never step uphill on a random batch of remembered examples."""

from __future__ import annotations

import torch
from torch import Tensor

from remnant.models import Network

from .parts.flat import flat, shaped
from .parts.replay import Episodic


class AGEM(Episodic):
    """Steps along g where gᵀr ≥ 0, and else along g − (gᵀr/rᵀr)·r, with r the gradient on a batch from memory.

    The memory holds random examples of every past task, and is shared evenly by the stream's tasks. A batch is drawn from all
    of them at once, so a norm by the batch sees them mixed; where there are not more than `memory_batch`, it is all of them.
    The first task is plain SGD.
    """

    name = "agem"

    def __init__(self, network: Network, *, lr: float, memory: int, memory_batch: int = 256) -> None:
        super().__init__(network, lr=lr, memory=memory)
        self.memory_batch = memory_batch

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self.loss(x, y)
        gradients = self.gradients(loss)
        if len(self.memory):
            reference = self.gradients(self.mixed_loss(*self.memory.draw(self.memory_batch)))
            gradients = shaped(without_conflict(flat(gradients), flat(reference)), gradients)
        self.apply_gradients(gradients)
        return loss.detach()


def without_conflict(gradient: Tensor, reference: Tensor) -> Tensor:
    """g − (min(gᵀr, 0)/rᵀr)·r: a clamp where the paper has an `if`, so that the step stays on the device."""
    product, square = torch.linalg.vecdot(torch.stack([gradient, reference]), reference)
    tiny = torch.finfo(square.dtype).tiny  # a reference of zero conflicts with nothing
    return gradient.addcmul(product.clamp(max=0) / square.clamp(min=tiny), reference, value=-1)
