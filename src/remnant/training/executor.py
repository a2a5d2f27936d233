"""Takes a method's steps and evaluates it, in the plain way that works everywhere. `remnant.accelerated` does it faster."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from remnant.data import Split
from remnant.evaluation import Evaluation, Loss, PendingEvaluation, evaluation_sums
from remnant.methods import Method

from .cooperative import Work

STEPS_PER_TURN = 200  # steps before other runs may continue


class Steps(ABC):
    """The steps of one task. An epoch has `count` of them; after it `loss` is the sum of the batches' losses."""

    def __init__(self, method: Method, train: Split, batch: int) -> None:
        self.method, self.train, self.batch = method, train, batch
        self.x, self.y = train.x, train.y
        rows = len(train)
        # A last batch of one row is left out, because it has no statistics to normalise by. Which row that is changes.
        self.rows = rows - 1 if rows % batch == 1 and batch > 1 and rows > 1 else rows
        self.whole_batches, self.tail = divmod(self.rows, batch)  # tail: the rows of a last, smaller batch
        self.count = self.whole_batches + bool(self.tail)
        self.loss = torch.zeros((), device=method.device)

    @abstractmethod
    def epoch(self) -> Work[None]:
        """Takes one epoch's steps in a new random order."""

    def new_order(self) -> Tensor:
        """The rows of the next epoch, in the order in which the method sees them."""
        return self.method.order(self.train, self.batch)[: self.rows]


class EagerSteps(Steps):
    """Calls `Method.step` for each batch."""

    def epoch(self) -> Work[None]:
        self.loss.zero_()
        for count, part in enumerate(self.new_order().split(self.batch), start=1):
            self.loss += self.method.step(self.x[part], self.y[part])
            if count % STEPS_PER_TURN == 0:
                yield None


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
        mean_loss, accuracy = (np.average(each, weights=self.sizes) for each in (measured.loss, measured.accuracy))
        return float(mean_loss), float(accuracy)

    def evaluate(self) -> Work[Evaluation]:
        return (yield from _evaluate(self.method, self.splits.items(), self.batch, F.cross_entropy))


class Executor:
    """How a trainer takes steps and validates: here plainly. A subclass may do the same work faster."""

    fallback: str | None = None  # why a subclass works slower than it could

    def steps(self, method: Method, train: Split, batch: int) -> Work[Steps]:
        """Prepares the steps of a task."""
        yield from ()
        return EagerSteps(method, train, batch)

    def validation(self, method: Method, splits: Mapping[int, Split], batch: int) -> Validation:
        """Prepares the validation of a task. The trainer calls this after `steps`."""
        return Validation(method, splits, batch)


def evaluate_method(method: Method, splits: Mapping[int, Split], batch: int) -> Work[Evaluation]:
    """Evaluates a method on the test sets of several tasks."""
    return (yield from _evaluate(method, _shuffled(method, splits), batch, None))


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
