"""Evaluation of a method while other runs use the same device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch
import torch.nn.functional as F

from remnant.data import Split
from remnant.evaluation import Evaluation, Loss, PendingEvaluation, evaluation_sums
from remnant.methods import Method

from .cooperative import Work


def evaluate_method(method: Method, splits: Mapping[int, Split], batch: int) -> Work[Evaluation]:
    """Evaluates a method on the test sets of several tasks."""
    return (yield from _evaluate(method, _shuffled(method, splits), batch, None))


class Validation:
    """The loss and accuracy after every epoch, always on the same examples."""

    fallback: str | None = None  # why a subclass works slower than it could

    def __init__(self, method: Method, splits: Mapping[int, Split], batch: int) -> None:
        self.method, self.batch = method, batch
        self.splits = dict(_shuffled(method, splits))
        self.sizes = [len(split) for split in self.splits.values()]

    def __len__(self) -> int:
        return sum(self.sizes)

    def measure(self) -> Work[tuple[float, float]]:
        """The mean loss and accuracy over the examples of all splits. Leaves the network in evaluation mode."""
        self.method.network.eval()
        measured = yield from self.evaluate()
        assert measured.loss is not None
        loss, accuracy = (float(np.average(each, weights=self.sizes)) for each in (measured.loss, measured.accuracy))
        return loss, accuracy

    def evaluate(self) -> Work[Evaluation]:
        return (yield from _evaluate(self.method, self.splits.items(), self.batch, F.cross_entropy))


def _shuffled(method: Method, splits: Mapping[int, Split]) -> Iterator[tuple[int, Split]]:
    """Shuffles the splits if the network normalises by the batch, in the same order every time.

    Data sets are often sorted by class, and normalising a batch of one class would remove what is common to the class.
    """
    by_batch = any(getattr(module, "track_running_stats", True) is False for module in method.network.modules())
    generator = torch.Generator().manual_seed(0)
    for task, split in splits.items():
        if by_batch:
            order = torch.randperm(len(split), generator=generator).to(split.y.device)
            split = Split.of(split.x[order], split.y[order])
        yield task, split


def _evaluate(method: Method, splits: Iterable[tuple[int, Split]], batch: int, loss: Loss | None) -> Work[Evaluation]:
    """Yields after each split, because queueing ten splits takes the host 0.1 s, and then until the device is done."""
    method.network.eval()
    queued = []
    for task, split in splits:
        queued.append(PendingEvaluation(*evaluation_sums(method.logits, {task: split}, batch, loss)))
        yield None
    while not all(pending.ready for pending in queued):
        yield None
    found = [pending.result() for pending in queued]
    losses = [each.loss for each in found if each.loss is not None]
    return Evaluation(np.concatenate([each.accuracy for each in found]), np.concatenate(losses) if losses else None)
