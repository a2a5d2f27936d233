"""All tasks at once, from all their data: no continual learning, but the accuracy it could reach at best."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from remnant.data import Split, Stream, Task
from remnant.models import Network

from .base import Method
from .parts.mixed import MixedLoss


class Multitask(Method):
    """Joint training. With a head per task, an example is scored by its own task's head."""

    name = "multitask"

    def __init__(self, network: Network, *, lr: float) -> None:
        super().__init__(network, lr=lr)
        self.mixed = MixedLoss(network)
        self.task_of, self.offsets = self.mixed.task_of, self.mixed.offsets
        # Of whole batches, and of the rest, in an order sorted by task.
        self._places: tuple[Tensor, Tensor] | None = None

    def curriculum(self, stream: Stream) -> Sequence[Task]:
        """One task with everything in it; labels count over all heads."""
        return [
            Task(
                name="all tasks together",
                classes=stream.classes,
                train=self._joined([task.train for task in stream]),
                valid=self._joined([task.valid for task in stream]),
                test=self._joined([task.test for task in stream]),
            )
        ]

    def order(self, train: Split, batch: int) -> Tensor:
        """Random batches, each of one task where tasks have heads of their own.

        A norm that goes by the batch's statistics must see in training what it sees in test, one task at a time. What a
        task leaves over, less than a batch, comes last and mixed.
        """
        if not self.network.multi_head:
            return super().order(train, batch)
        tasks = self.task_of[train.y]
        shuffled = torch.randperm(len(train), device=self.device)
        by_task = shuffled[torch.argsort(tasks[shuffled], stable=True)]
        if self._places is None:
            ends = torch.bincount(tasks).cumsum(0).tolist()
            starts = [0, *ends[:-1]]
            parts = [torch.arange(a, b).split(batch) for a, b in zip(starts, ends, strict=True)]
            none = torch.arange(0)
            whole = torch.cat([none, *(part for task in parts for part in task if len(part) == batch)])
            rest = torch.cat([none, *(part for task in parts for part in task if len(part) < batch)])
            self._places = whole.view(-1, batch).to(self.device), rest.to(self.device)
        whole_batches, left_over = self._places
        first = whole_batches[torch.randperm(len(whole_batches), device=self.device)].flatten()
        last = left_over[torch.randperm(len(left_over), device=self.device)]
        return by_task[torch.cat([first, last])]

    def validation(self, task: int, valid: Split) -> dict[int, Split]:
        """Each task's part with its own head and labels; one task to a batch, as in training and test."""
        if not self.network.multi_head:
            return super().validation(task, valid)
        tasks = self.task_of[valid.y]
        rows = [(tasks == t).nonzero().flatten() for t in range(len(self.offsets))]
        return {t: Split.of(valid.x[r], valid.y[r] - self.offsets[t]) for t, r in enumerate(rows) if len(r)}

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for p in self.network.parameters() if p.requires_grad]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = self.mixed(x, y, len(self.offsets))
        return loss

    def remaining(self) -> dict[str, Tensor] | None:
        """Everything, with one head; several at once are no chain of layers."""
        return None if self.network.multi_head else {}

    def _joined(self, splits: list[Split]) -> Split:
        shift = self.offsets if self.network.multi_head else [0] * len(splits)

        def x(device: torch.device) -> Tensor:
            return torch.cat([split.to(device).x for split in splits])

        def y() -> Tensor:
            return torch.cat([split.y + by for split, by in zip(splits, shift, strict=True)])

        return Split(sum(map(len, splits)), x, y)
