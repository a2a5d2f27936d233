"""Experience replay with a reservoir, ER_Res (Chaudhry et al., 2019, "On tiny episodic memories")."""

from __future__ import annotations

import torch
from torch import Tensor

from remnant.models import Network

from .parts.replay import Replay, Reservoir


class ER(Replay):
    """Joins every batch with an equally large one from memory; then the batch is offered to the reservoir.

    One pass and one mean over the joined batch, so a norm by the batch sees tasks mixed. Memory batches are drawn from all
    that is kept, the current task's examples with the rest, and may repeat one. In the very first step the memory is empty,
    and its half, blank rows, has no weight.
    """

    name = "er"
    memory: Reservoir

    def __init__(self, network: Network, *, lr: float, memory: int) -> None:
        super().__init__(network, lr=lr, memory=Reservoir(memory, network.example))

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        labels = self.mixed.labels(y, self.task)
        remembered, their_labels = self.memory.draw(len(y))
        loss = self.mixed_loss(torch.cat([x, remembered]), torch.cat([labels, their_labels]))
        self.apply_gradients(self.gradients(loss))
        self.memory.offer(x, labels)
        return loss.detach()

    def tensors(self) -> list[Tensor]:
        return [*super().tensors(), *self.memory.tensors()]
