"""Three references that are not continual-learning methods: plain SGD, a network per task, and all tasks at once."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from remnant.data import Split, Stream, Task
from remnant.models import Network

from .base import Method, trainable
from .parts.replay import MixedLoss


class Finetune(Method):
    """Plain SGD on one task after another: the forgetting that every other method is measured against."""

    name = "finetune"


class SingleTask(Method):
    """A network of its own for every task (STL), from the same initial weights: T times the parameters, no forgetting."""

    name = "single-task"
    initial: dict[str, Tensor]

    def __init__(self, network: Network, **options: Any) -> None:
        super().__init__(network, **options)
        self.keep("initial", dict(deepcopy(network.state_dict())), per_step=False, counted=False)
        self.keep("own_tensors", {}, per_step=False)

    def start(self, task: int) -> None:
        super().start(task)
        self.network.load_state_dict(self.initial)

    def finish(self, task: int, train: Split) -> None:
        self.own_tensors[str(task)] = dict(deepcopy(self.network.state_dict()))
        self.refresh()

    def refresh(self) -> None:
        self.capacity = float(len(self.own_tensors))


class Multitask(Method):
    """SGD on batches of all tasks: an upper bound. With one head per task, an example uses the head of its own task."""

    name = "multitask"

    def __init__(self, network: Network, **options: Any) -> None:
        super().__init__(network, **options)
        self.mixed = MixedLoss(network)
        if network.multi_head:
            self.fast_form = None  # several heads at once are not a chain of layers

    fast_form: str | None = "projected-sgd"

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.mixed.forward(x, y, len(self.network.classes))

    @property
    def parameters(self) -> list[nn.Parameter]:
        return trainable(self.network)

    def curriculum(self, stream: Stream) -> Sequence[Task]:
        """Returns one task that joins all others. With one head per task, labels are numbered through all heads."""
        parts = [[task.train, task.valid, task.test] for task in stream]
        train, valid, test = (self._joined(splits) for splits in zip(*parts, strict=True))
        return [Task(name="all tasks together", classes=stream.classes, train=train, valid=valid, test=test)]

    def _joined(self, splits: Sequence[Split]) -> Split:
        return Split(
            sum(map(len, splits)),
            lambda device: torch.cat([split.to(device).x for split in splits]),
            lambda: torch.cat([self.mixed.labels(split.y, task) for task, split in enumerate(splits)]),
        )

    def order(self, train: Split, batch: int) -> Tensor:
        """Returns random batches, each from one task where every task has its own head.

        Batch normalisation then sees in training what it sees at test time. Remainders smaller than a batch come last, mixed.
        """
        shuffled = super().order(train, batch)
        if not self.network.multi_head:
            return shuffled
        tasks = self.mixed.task_of[train.y]
        by_task = shuffled[torch.argsort(tasks[shuffled], stable=True)]
        sizes = torch.bincount(tasks)
        number = torch.cat([torch.arange(size, device=self.device) for size in sizes.tolist()])  # within its task
        in_whole_batch = number < (sizes // batch * batch).repeat_interleave(sizes)
        whole, rest = by_task[in_whole_batch].view(-1, batch), by_task[~in_whole_batch]
        first = whole[torch.randperm(len(whole), device=self.device)].flatten()
        return torch.cat([first, rest[torch.randperm(len(rest), device=self.device)]])

    def validation(self, task: int, valid: Split) -> dict[int, Split]:
        """Returns each task's part for its own head, with its own labels."""
        if not self.network.multi_head:
            return super().validation(task, valid)
        rows = [(self.mixed.task_of[valid.y] == t).nonzero().flatten() for t in range(len(self.network.classes))]
        return {t: Split.of(valid.x[r], valid.y[r] - self.mixed.offsets[t]) for t, r in enumerate(rows) if len(r)}
