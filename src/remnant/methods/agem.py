"""Averaged GEM (Chaudhry et al., 2019): never step uphill on a random batch of remembered examples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from remnant.data import Split
from remnant.models import Network

from .flat import flat, shaped
from .replay import Episodes, Replay


class AGEM(Replay):
    """Steps along g where gᵀr ≥ 0, and else along g − (gᵀr/rᵀr)·r, with r the gradient on a batch from memory.

    The memory holds random examples of every past task, as many of each. A batch is drawn from all of them at once, and is
    all of them where there are not more than `memory_batch`. The first task is plain SGD.
    """

    name = "agem"

    def __init__(self, network: Network, *, lr: float, memory: int, memory_batch: int = 256) -> None:
        super().__init__(network, lr=lr)
        self.memory = Episodes(memory, network.example)
        self.memory_batch = memory_batch

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self.loss(x, y)
        gradients = self.gradients(loss)
        if len(self.memory):
            reference = self.gradients(self.mixed_loss(*self.memory.draw(self.memory_batch)))
            gradients = shaped(without_conflict(flat(gradients), flat(reference)), gradients)
        self.descend(gradients)
        return loss.detach()

    def finish(self, task: int, train: Split) -> None:
        self.memory.add(train, self.mixed.labels(train.y, task))

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "memory": self.memory.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.memory.load_state_dict(state["memory"])


def without_conflict(gradient: Tensor, reference: Tensor) -> Tensor:
    """g − (min(gᵀr, 0)/rᵀr)·r: a clamp where the paper has an `if`, so that the step stays on the device."""
    product, square = torch.linalg.vecdot(torch.stack([gradient, reference]), reference)
    tiny = torch.finfo(square.dtype).tiny  # a reference of zero conflicts with nothing
    return gradient.addcmul(product.clamp(max=0) / square.clamp(min=tiny), reference, value=-1)
