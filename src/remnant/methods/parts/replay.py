"""Batches that mix tasks: their loss, and a memory with a share of examples for every past task."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant.data import Split, Stream, Task
from remnant.models import Network
from remnant.options import Positive

from ..base import Method, Stateful, trainable

NO_LABEL = -1  # marks a row that only fills the batch and has no weight in the loss


class MixedLoss(nn.Module):
    """Mean cross-entropy of examples of several tasks, each scored by its own task's head.

    With one head per task, labels are numbered through all heads, and an example's scores from other tasks' heads are masked.
    All heads form one matrix, so twenty heads take as many kernels as two.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        sizes = network.classes
        self.offsets = [sum(sizes[:t]) for t in range(len(sizes))]
        self.task_of = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)).to(network.example.device)
        # others[c] marks the outputs of the tasks that class c does not belong to.
        self.others = self.task_of[:, None] != self.task_of[None, :]

    def labels(self, y: Tensor, task: int) -> Tensor:
        """Numbers a task's own labels through all heads."""
        return y + self.offsets[task] if self.network.multi_head else y

    def forward(self, x: Tensor, labels: Tensor, tasks: int) -> Tensor:
        """Returns the loss of examples of the first `tasks` tasks."""
        return F.cross_entropy(self.scores(x, labels, tasks), labels, ignore_index=NO_LABEL)

    def scores(self, x: Tensor, labels: Tensor, tasks: int) -> Tensor:
        """Returns the scores of all classes of the first `tasks` tasks; −∞ for classes of other tasks than the label's."""
        if not self.network.multi_head:
            scores: Tensor = self.network(x)
            return scores
        heads = [self.network.head_of(task) for task in range(tasks)]
        weight = torch.cat([head.weight for head in heads])
        bias = torch.cat([head.bias for head in heads]) if heads[0].bias is not None else None
        scores = F.linear(self.network.features(x), weight, bias)
        # NO_LABEL, -1, selects the last row, so that no example has all its scores masked.
        others = self.others[: len(weight), : len(weight)][labels]
        return scores.masked_fill(others, -torch.inf)


class Replay(Method):
    """Trains the body and the heads of all tasks so far."""

    def __init__(self, network: Network, **options: Any) -> None:
        super().__init__(network, **options)
        self.mixed = MixedLoss(network)

    @property
    def parameters(self) -> list[nn.Parameter]:
        later_heads = list(self.network.heads)[self.task + 1 :] if self.network.multi_head else ()
        return trainable(self.network, *later_heads)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.mixed_loss(x, self.mixed.labels(y, self.task))

    def mixed_loss(self, x: Tensor, labels: Tensor) -> Tensor:
        """The loss of examples of this task and earlier ones, with labels numbered through all heads."""
        return self.mixed.forward(x, labels, self.task + 1)


class Episodic(Replay):
    """Remembers a share of every task, chosen when the task ends. `memory` is the number of examples in all."""

    memory: "Episodes"

    def __init__(self, network: Network, *, memory: Positive = 1000, **options: Any) -> None:
        super().__init__(network, **options)
        self.keep("memory", Episodes(memory, network.example))

    def curriculum(self, stream: Stream) -> Sequence[Task]:
        self.memory.tasks = len(stream)
        return super().curriculum(stream)

    def finish(self, task: int, train: Split) -> None:
        self.memory.add(train, self.mixed.labels(train.y, task))


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

        def with_new(rows: Tensor, new: Tensor) -> Tensor:
            # A task's examples are in random order, so the first of them are a random choice.
            kept = [part[:most] for part, most in zip(rows.split(self.counts), share, strict=False)]
            return torch.cat([*kept, new[chosen]])

        self.x, self.labels = with_new(self.x, train.x), with_new(self.labels, labels)
        self.counts = [*map(min, self.counts, share), len(chosen)]

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Returns `count` random examples of all tasks with replacement, or all examples if there are no more."""
        if count >= len(self):
            return self.x, self.labels
        rows = torch.randint(len(self), (count,), device=self.device)
        return self.x[rows], self.labels[rows]

    def by_task(self) -> tuple[Tensor, Tensor]:
        """Returns one batch per remembered task, all of one size: shorter ones are filled with copies without a label."""
        counts = [count for count in self.counts if count]
        batches, labels = [], []
        for x, own in zip(self.x.split(counts), self.labels.split(counts), strict=True):
            rows = torch.arange(max(counts), device=self.device)
            batches.append(x[rows % len(own)])
            labels.append(own[rows % len(own)].masked_fill(rows >= len(own), NO_LABEL))
        return torch.stack(batches), torch.stack(labels)
