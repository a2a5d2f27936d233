"""Methods that keep examples of past tasks, and the two ways to keep them: a reservoir, and so many of each task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from remnant.data import Split, Stream, Task
from remnant.models import Network

from ..base import Method
from .mixed import NO_LABEL, MixedLoss


class Replay(Method):
    """Trains the body and the heads of all tasks so far: remembered examples go through their own task's head."""

    def __init__(self, network: Network, *, lr: float, memory: Reservoir | Episodes) -> None:
        super().__init__(network, lr=lr)
        self.memory = memory
        self.mixed = MixedLoss(network)

    @property
    def parameters(self) -> list[nn.Parameter]:
        later: Iterable[nn.Module] = self.network.heads[self.task + 1 :] if self.network.multi_head else []
        idle = {id(parameter) for head in later for parameter in head.parameters()}
        return [p for p in self.network.parameters() if id(p) not in idle and p.requires_grad]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.mixed_loss(x, self.mixed.labels(y, self.task))

    def mixed_loss(self, x: Tensor, labels: Tensor) -> Tensor:
        """Of examples of this task and those before it, with labels that count over all heads."""
        loss: Tensor = self.mixed(x, labels, self.task + 1)
        return loss

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "memory": self.memory.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.memory.load_state_dict(state["memory"])


class Episodic(Replay):
    """Remembers so many examples of every task, chosen when it ends."""

    memory: Episodes

    def __init__(self, network: Network, *, lr: float, memory: int) -> None:
        super().__init__(network, lr=lr, memory=Episodes(memory, network.example))

    def curriculum(self, stream: Stream) -> Sequence[Task]:
        self.memory.tasks = len(stream)
        return super().curriculum(stream)

    def finish(self, task: int, train: Split) -> None:
        self.memory.add(train, self.mixed.labels(train.y, task))


class Reservoir:
    """A uniform sample of all the examples offered so far, in a memory of a fixed size.

    The n-th one offered is kept with probability size/n, in a random place: place ⌊u·n⌋ with u from [0, 1), if the memory
    has such a place. While there is room it takes the next place. An example offered twice counts twice.
    """

    def __init__(self, size: int, example: Tensor) -> None:
        self.size = size
        # One row more than is kept. What is not kept is written there, so that a step always writes a whole batch.
        self.x = example.new_zeros(size + 1, *example.shape)
        self.labels = torch.full((size + 1,), NO_LABEL, device=example.device)
        self.offered = torch.zeros((), dtype=torch.int64, device=example.device)

    def offer(self, x: Tensor, labels: Tensor) -> None:
        place = self.places(len(labels))
        self.x.index_copy_(0, place, x)
        self.labels.index_copy_(0, place, labels)
        self.offered += len(labels)

    def places(self, count: int) -> Tensor:
        """Where the next `count` examples go; `size`, the row too many, where one is not kept."""
        number = torch.arange(1, count + 1, device=self.offered.device) + self.offered
        chance = torch.rand(count, dtype=torch.float64, device=number.device)  # float32 has no room for millions
        place = torch.where(number > self.size, (chance * number).long(), number - 1).clamp(max=self.size)
        # Of two with the same place the later stays. It must be the only one written: a GPU writes in no order.
        replaced = (place[:, None] == place).triu(1).any(1)
        return place.masked_fill(replaced, self.size)

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """`count` examples, each any of those kept; blank ones without a label while there are none."""
        kept = self.offered.clamp(max=self.size)
        place = (torch.rand(count, dtype=torch.float64, device=self.x.device) * kept).long()
        return self.x[place], self.labels[place]

    @property
    def nbytes(self) -> int:
        return self.x[: self.size].nbytes + self.labels[: self.size].nbytes

    def tensors(self) -> list[Tensor]:
        return [self.x, self.labels, self.offered]

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x, "labels": self.labels, "offered": self.offered}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for own, kept in zip(self.tensors(), (state["x"], state["labels"], state["offered"]), strict=True):
            own.copy_(kept)


class Episodes:
    """Random examples of every finished task, `size` in all, shared evenly among all tasks there will be.

    A task with fewer examples than its share keeps them all. Where more tasks come than was said, or nobody said how
    many, the memory is shared among those seen so far: a new one's share is made by dropping some of each other's.
    """

    def __init__(self, size: int, example: Tensor) -> None:
        self.size = size
        self.tasks = 1  # that there will be, as far as is known
        self.x = example.new_zeros(0, *example.shape)
        self.labels = torch.zeros(0, dtype=torch.int64, device=example.device)
        self.counts: list[int] = []  # of each task, in order

    def __len__(self) -> int:
        return len(self.labels)

    def add(self, train: Split, labels: Tensor) -> None:
        """Remembers a task. Changes shapes, so between tasks only."""
        seen = len(self.counts) + 1
        tasks = max(self.tasks, seen)
        share = [self.size // tasks + (task < self.size % tasks) for task in range(seen)]
        chosen = torch.randperm(len(train), device=self.x.device)[: share[-1]]
        # A task's examples lie in random order: the first of them are a random part.
        self.x = _firsts(self.x, self.counts, share, train.x[chosen])
        self.labels = _firsts(self.labels, self.counts, share, labels[chosen])
        self.counts = [*(min(pair) for pair in zip(self.counts, share[:-1], strict=True)), len(chosen)]

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """`count` examples, each any of all tasks'; simply all of them where there are no more."""
        if count >= len(self):
            return self.x, self.labels
        place = torch.randint(len(self), (count,), device=self.x.device)
        return self.x[place], self.labels[place]

    def by_task(self) -> tuple[Tensor, Tensor]:
        """One batch for each task that has examples, all of one size: shorter ones repeat examples, without a label."""
        counts = [count for count in self.counts if count]
        batches, labels = [], []
        for x, own in zip(self.x.split(counts), self.labels.split(counts), strict=True):
            place = torch.arange(max(counts), device=own.device)
            batches.append(x[place % len(own)])
            labels.append(own[place % len(own)].masked_fill(place >= len(own), NO_LABEL))
        return torch.stack(batches), torch.stack(labels)

    @property
    def nbytes(self) -> int:
        return self.x.nbytes + self.labels.nbytes

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x, "labels": self.labels, "counts": list(self.counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.x, self.labels = state["x"].to(self.x), state["labels"].to(self.labels)
        self.counts = list(state["counts"])


def _firsts(rows: Tensor, counts: Sequence[int], keep: Sequence[int], new: Tensor) -> Tensor:
    """The first rows of each part, and the new ones."""
    return torch.cat([*(part[:kept] for part, kept in zip(rows.split(list(counts)), keep, strict=False)), new])
