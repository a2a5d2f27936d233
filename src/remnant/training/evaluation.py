"""Evaluations where several runs share a device: queued, and waited for while others go; repeated ones are recorded."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping

import numpy as np
import torch
import torch.nn.functional as F

from remnant.data import Split
from remnant.evaluation import Evaluation, Loss, Pending, queue_evaluation, sum_up
from remnant.methods import Method

from .recording import recording
from .work import Start


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
    """What a task is validated on after every epoch: the same splits, each time with other weights.

    With `record`, it is recorded into a CUDA graph the second time, and from then on replayed: the host makes one call
    instead of thirty a batch. The first time is plain, as libraries set themselves up on first use, which a capture must not
    see. A graph reads the tensors it was captured with, so the splits are kept here for as long as it lives.
    """

    def __init__(self, method: Method, splits: Mapping[int, Split], batch: int, *, record: bool) -> None:
        self.method, self.batch = method, batch
        self.splits = dict(shuffled(method, splits))
        self.sizes = [len(split) for split in self.splits.values()]
        self.record = record and can_be_recorded(method)
        self.fallback: str | None = None  # why it is not recorded, though it was asked for
        self._times = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __len__(self) -> int:
        return sum(self.sizes)

    def measure(self) -> Generator[Start | None, None, tuple[float, float]]:
        """Mean loss and accuracy over the examples of all the splits."""
        self.method.network.eval()  # also where it is replayed: `finish` finds the network as a plain validation leaves it
        if self.record and self._times == 1:
            self._capture()
        self._times += 1
        if self._graph is not None:
            measured = yield from self._replayed(self._graph)
        else:
            measured = yield from _queued(self.method, self.splits.items(), self.batch, F.cross_entropy)
        assert measured.loss is not None
        loss, accuracy = (float(np.average(each, weights=self.sizes)) for each in (measured.loss, measured.accuracy))
        return loss, accuracy

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with recording(graph):
                self._sums, _ = sum_up(self.method.logits, self.splits, batch_size=self.batch, loss=F.cross_entropy)
        except RuntimeError as error:
            self.fallback = f"validation is not captured: {str(error).splitlines()[0]}"
        else:
            self._graph = graph

    def _replayed(self, graph: torch.cuda.CUDAGraph) -> Generator[Start | None, None, Evaluation]:
        yield graph.replay
        pending = Pending(self._sums, self.sizes, with_loss=True)
        while not pending.ready:
            yield None
        return pending.result()


def can_be_recorded(method: Method) -> bool:
    """Whether the class that defines the method's `logits` says that they keep to a step's rules.

    To try is not enough: a capture that freezes what should have changed does not fail.
    """
    owner = next(kind for kind in type(method).__mro__ if "logits" in vars(kind))
    return bool(vars(owner).get("logits_recordable", False)) and "logits" not in vars(method)


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
