"""Gradient projection that looks at a task's examples before its first step."""

from collections.abc import Sequence

import torch
from torch import Tensor

from remnant.data import Split, Stream, Task

from ..gpm import Forward, GradientProjection


class LookAhead(GradientProjection):
    """GPM whose subclasses find the training examples of each task in `tasks`, and compute by `forward` for a task."""

    tasks: Sequence[Task] = ()

    def curriculum(self, stream: Stream) -> Sequence[Task]:
        self.tasks = stream.tasks
        return super().curriculum(stream)

    def random_examples(self, train: Split, count: int) -> tuple[Tensor, Tensor]:
        """Returns up to `count` inputs and their labels."""
        train = train.to(self.device)
        chosen = torch.randperm(len(train), device=self.device)[:count]
        return train.x[chosen], train.y[chosen]

    def forward(self, task: int) -> Forward:
        """Returns the function that runs the network as a task does."""
        return lambda network, x: network(x, task)

    def finish(self, task: int, train: Split, forward: Forward | None = None) -> None:
        super().finish(task, train, forward or self.forward(task))
