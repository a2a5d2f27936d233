"""Evaluations where several runs share a device: queued, and waited for while others go; repeated ones are recorded."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping

import numpy as np
import torch
import torch.nn.functional as F

from remnant.data import Split
from remnant.evaluation import Evaluation, Loss, queue_evaluation
from remnant.methods import Method

from .cooperative import Blocking


def evaluate_in_turns(
    method: Method, splits: Mapping[int, Split], batch: int, loss: Loss | None = None
) -> Generator[None, None, Evaluation]:
    """Evaluates a method once, in the order of `shuffled`.

    Others may go after each split, since to queue ten tasks' batches takes the host a tenth of a second, and then until the
    device is done.
    """
    return (yield from _queued(method, shuffled(method, splits), batch, loss))


def shuffled(method: Method, splits: Mapping[int, Split]) -> Iterator[tuple[int, Split]]:
    """The splits in an order that does not depend on how a set is sorted, where that matters.

    Where a network normalises by the batch, a batch of one class would be normalised away. So splits are shuffled, with a
    seed of their own: the same order every time.
    """
    by_batch = any(getattr(module, "track_running_stats", True) is False for module in method.network.modules())
    generator = torch.Generator().manual_seed(0)
    for task, split in splits.items():
        if by_batch:
            order = torch.randperm(len(split), generator=generator).to(split.y.device)
            split = Split.of(split.x[order], split.y[order])
        yield task, split


class Validation:
    """Loss and accuracy after every epoch, always on the same examples."""

    fallback: str | None = None  # why it is slower than it could have been

    def __init__(self, method: Method, splits: Mapping[int, Split], batch: int) -> None:
        self.method, self.batch = method, batch
        self.splits = dict(shuffled(method, splits))
        self.sizes = [len(split) for split in self.splits.values()]

    def __len__(self) -> int:
        return sum(self.sizes)

    def measure(self) -> Generator[Blocking | None, None, tuple[float, float]]:
        """The mean loss and accuracy over the examples of all splits."""
        self.method.network.eval()  # a recorded validation too must leave the network in eval mode, as a plain one does
        measured = yield from self.evaluation()
        assert measured.loss is not None
        loss, accuracy = (float(np.average(each, weights=self.sizes)) for each in (measured.loss, measured.accuracy))
        return loss, accuracy

    def evaluation(self) -> Generator[Blocking | None, None, Evaluation]:
        return (yield from _queued(self.method, self.splits.items(), self.batch, F.cross_entropy))


def _queued(
    method: Method, splits: Iterable[tuple[int, Split]], batch: int, loss: Loss | None
) -> Generator[None, None, Evaluation]:
    method.network.eval()
    queued = []
    for task, split in splits:
        queued.append(queue_evaluation(method.logits, {task: split}, batch_size=batch, loss=loss))
        yield None
    while not all(pending.ready for pending in queued):
        yield None
    found = [pending.result() for pending in queued]
    losses = [each.loss for each in found if each.loss is not None]
    return Evaluation(np.concatenate([each.accuracy for each in found]), np.concatenate(losses) if losses else None)
