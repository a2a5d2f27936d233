"""Joint training on all tasks at once: not continual learning, but an upper bound on its accuracy."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from remnant.data import Split, Stream, Task
from remnant.models import Network

from .base import Method
from .parts.mixed import MixedLoss


class Multitask(Method):
    """SGD on batches of all tasks. With one head per task, an example is scored by the head of its own task."""

    name = "multitask"

    def __init__(self, network: Network, **options: Any) -> None:
        super().__init__(network, **options)
        self.mixed = MixedLoss(network)
        self.task_of, self.offsets = self.mixed.task_of, self.mixed.offsets
        if network.multi_head:
            self.fast_form = None  # several heads at once are no chain of layers

    fast_form: str | None = "projected-sgd"

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = self.mixed(x, y, len(self.offsets))
        return loss

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for p in self.network.parameters() if p.requires_grad]

    def curriculum(self, stream: Stream) -> Sequence[Task]:
        """Returns one task that joins all others. With one head per task, labels are numbered through all heads."""
        train, valid, test = (
            self._joined([getattr(task, part) for task in stream]) for part in ("train", "valid", "test")
        )
        return [Task(name="all tasks together", classes=stream.classes, train=train, valid=valid, test=test)]

    def _joined(self, splits: list[Split]) -> Split:
        shift = self.offsets if self.network.multi_head else [0] * len(splits)

        def x(device: torch.device) -> Tensor:
            return torch.cat([split.to(device).x for split in splits])

        def y() -> Tensor:
            return torch.cat([split.y + by for split, by in zip(splits, shift, strict=True)])

        return Split(sum(map(len, splits)), x, y)

    def order(self, train: Split, batch: int) -> Tensor:
        """Returns random batches, each from one task where every task has its own head.

        Batch normalisation then sees in training what it sees at test time. Remainders smaller than a batch come last, mixed.
        """
        if not self.network.multi_head:
            return super().order(train, batch)
        tasks = self.task_of[train.y]
        shuffled = torch.randperm(len(train), device=self.device)
        by_task = shuffled[torch.argsort(tasks[shuffled], stable=True)]
        rows = torch.arange(len(train), device=self.device).split(torch.bincount(tasks).tolist())
        batches = [part for of_task in rows for part in of_task.split(batch)]
        none = rows[0][:0]
        whole = torch.cat([none, *(part for part in batches if len(part) == batch)]).view(-1, batch)
        rest = torch.cat([none, *(part for part in batches if len(part) < batch)])
        first = whole[torch.randperm(len(whole), device=self.device)].flatten()
        last = rest[torch.randperm(len(rest), device=self.device)]
        return by_task[torch.cat([first, last])]

    def validation(self, task: int, valid: Split) -> dict[int, Split]:
        """Returns each task's part for its own head, with its own labels."""
        if not self.network.multi_head:
            return super().validation(task, valid)
        tasks = self.task_of[valid.y]
        rows = [(tasks == t).nonzero().flatten() for t in range(len(self.offsets))]
        return {t: Split.of(valid.x[r], valid.y[r] - self.offsets[t]) for t, r in enumerate(rows) if len(r)}
