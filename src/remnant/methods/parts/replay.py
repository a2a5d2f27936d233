"""Methods that keep examples of past tasks, and two memories for them: a reservoir, and a fixed share per task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from remnant.data import Split, Stream, Task
from remnant.models import Network
from remnant.options import Positive

from ..base import Method
from ..state import Stateful
from .mixed import NO_LABEL, MixedLoss


class Replay(Method):
    """Trains the body and the heads of all tasks so far. Remembered examples use the head of their own task."""

    def __init__(self, network: Network, *, memory: Any, **options: Any) -> None:
        super().__init__(network, **options)
        self.keep("memory", memory)
        self.mixed = MixedLoss(network)

    @property
    def parameters(self) -> list[nn.Parameter]:
        later: Iterable[nn.Module] = self.network.heads[self.task + 1 :] if self.network.multi_head else []
        idle = {p for head in later for p in head.parameters()}
        return [p for p in self.network.parameters() if p not in idle and p.requires_grad]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.mixed_loss(x, self.mixed.labels(y, self.task))

    def mixed_loss(self, x: Tensor, labels: Tensor) -> Tensor:
        """The loss of examples of this task and earlier ones, with labels numbered through all heads."""
        loss: Tensor = self.mixed(x, labels, self.task + 1)
        return loss


class Episodic(Replay):
    """Remembers a share of every task, chosen when the task ends."""

    memory: Episodes

    def __init__(self, network: Network, *, memory: Positive = 1000, **options: Any) -> None:
        super().__init__(network, memory=Episodes(memory, network.example), **options)

    def curriculum(self, stream: Stream) -> Sequence[Task]:
        self.memory.tasks = len(stream)
        return super().curriculum(stream)

    def finish(self, task: int, train: Split) -> None:
        self.memory.add(train, self.mixed.labels(train.y, task))


class Reservoir(Stateful):
    """A uniform sample of all examples offered so far.

    The n-th example is kept with probability size/n, at a random place: ⌊u·n⌋ with u from [0, 1), if that is below `size`.
    While there is room it takes the next place. An example that is offered twice counts twice.
    """

    x: Tensor
    labels: Tensor
    offered: Tensor

    def __init__(self, size: int, example: Tensor) -> None:
        self.size, self.device = size, example.device

        def kept_bytes(rows: Tensor) -> int:
            return rows[:size].nbytes

        # Rejected examples go into one row too many, so that a step always writes a whole batch.
        self.keep("x", example.new_zeros(size + 1, *example.shape), counted=kept_bytes)
        self.keep("labels", torch.full((size + 1,), NO_LABEL, device=self.device), counted=kept_bytes)
        self.keep("offered", torch.zeros((), dtype=torch.int64, device=self.device), counted=False)

    def offer(self, x: Tensor, labels: Tensor) -> None:
        place = self.places(len(labels))
        self.x.index_copy_(0, place, x)
        self.labels.index_copy_(0, place, labels)
        self.offered += len(labels)

    def places(self, count: int) -> Tensor:
        """Returns the rows for the next `count` examples; `size`, the row too many, for those that are rejected."""
        number = torch.arange(1, count + 1, device=self.device) + self.offered
        chance = torch.rand(count, dtype=torch.float64, device=self.device)  # float32 is too coarse for millions
        place = torch.where(number > self.size, (chance * number).long(), number - 1).clamp(max=self.size)
        # If two examples share a place, only the later one is written: a GPU writes in no fixed order.
        replaced = (place[:, None] == place).triu(1).any(1)
        return place.masked_fill(replaced, self.size)

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Returns `count` random examples with replacement; blank ones without a label while the memory is empty."""
        kept = self.offered.clamp(max=self.size)
        place = (torch.rand(count, dtype=torch.float64, device=self.device) * kept).long()
        return self.x[place], self.labels[place]


class Episodes(Stateful):
    """Random examples of every finished task, `size` in all, shared evenly among the tasks of the stream.

    A task with fewer examples than its share keeps them all. If more tasks come than were announced, the tasks seen so far
    share the memory: each drops some examples for a new one.
    """

    x: Tensor
    labels: Tensor
    counts: list[int]  # examples per task

    def __init__(self, size: int, example: Tensor) -> None:
        self.size, self.device = size, example.device
        self.tasks = 1  # announced by Episodic.curriculum
        self.keep("x", example.new_zeros(0, *example.shape), per_step=False)
        self.keep("labels", torch.zeros(0, dtype=torch.int64, device=self.device), per_step=False)
        self.keep("counts", [])

    def __len__(self) -> int:
        return len(self.labels)

    def add(self, train: Split, labels: Tensor) -> None:
        """Remembers a task. It changes shapes, so it cannot be part of a step."""
        seen = len(self.counts) + 1
        tasks = max(self.tasks, seen)
        share = [self.size // tasks + (task < self.size % tasks) for task in range(seen)]
        chosen = torch.randperm(len(train), device=self.device)[: share[-1]]
        # A task's examples are in random order, so the first of them are a random choice.
        self.x = _firsts(self.x, self.counts, share, train.x[chosen])
        self.labels = _firsts(self.labels, self.counts, share, labels[chosen])
        self.counts = [*(min(pair) for pair in zip(self.counts, share[:-1], strict=True)), len(chosen)]

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Returns `count` random examples of all tasks with replacement, or simply all if there are no more."""
        if count >= len(self):
            return self.x, self.labels
        place = torch.randint(len(self), (count,), device=self.device)
        return self.x[place], self.labels[place]

    def by_task(self) -> tuple[Tensor, Tensor]:
        """Returns one batch per remembered task, all of one size: shorter ones repeat examples, without a label."""
        counts = [count for count in self.counts if count]
        batches, labels = [], []
        for x, own in zip(self.x.split(counts), self.labels.split(counts), strict=True):
            place = torch.arange(max(counts), device=self.device)
            batches.append(x[place % len(own)])
            labels.append(own[place % len(own)].masked_fill(place >= len(own), NO_LABEL))
        return torch.stack(batches), torch.stack(labels)


def _firsts(rows: Tensor, counts: Sequence[int], keep: Sequence[int], new: Tensor) -> Tensor:
    """The first rows of each part, and the new ones."""
    return torch.cat([*(part[:kept] for part, kept in zip(rows.split(list(counts)), keep, strict=False)), new])
