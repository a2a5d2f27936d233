"""Experience replay with a reservoir, ER_Res (Chaudhry et al., 2019, "On tiny episodic memories")."""

from typing import Any

import torch
from torch import Tensor

from remnant.models import Network
from remnant.options import Positive

from .parts.replay import Replay
from .parts.reservoir import Reservoir


class ER(Replay):
    """Joins every batch with an equally large one from the memory, then offers the batch to the reservoir.

    The joined batch takes one pass and has one mean loss, so batch normalisation sees the tasks mixed. A memory batch is
    drawn with replacement from all examples kept, including the current task's. In the first step the memory is empty, and
    blank rows without weight stand in for it.
    """

    name = "er"
    memory: Reservoir

    def __init__(self, network: Network, *, memory: Positive = 1000, **options: Any) -> None:
        super().__init__(network, **options)
        self.keep("memory", Reservoir(memory, network.example))

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        labels = self.mixed.labels(y, self.task)
        remembered, their_labels = self.memory.draw(len(y))
        loss = self.mixed_loss(torch.cat([x, remembered]), torch.cat([labels, their_labels]))
        self.apply_gradients(self.gradients(loss))
        self.memory.offer(x, labels)
        return loss.detach()
