"""Training steps one by one with autograd. They work everywhere; `remnant.accelerated` takes the same steps faster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from remnant.data import Split
from remnant.methods import Method

from .cooperative import Work
from .validation import Validation

STEPS_PER_TURN = 200  # steps before other runs may continue


class Steps(ABC):
    """The steps of one task. An epoch has `count` of them; after it `loss` is the sum of the batches' losses."""

    def __init__(self, method: Method, train: Split, batch: int) -> None:
        self.method, self.train, self.batch = method, train, batch
        rows = len(train)
        # A last batch of one row is left out, because it has no statistics to normalise by. Which row that is changes.
        self.rows = rows - 1 if rows % batch == 1 and batch > 1 and rows > 1 else rows
        self.whole_batches, self.tail = divmod(
            self.rows, batch
        )  # the tail is the number of rows in a last, smaller batch
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

    def __init__(self, method: Method, train: Split, batch: int) -> None:
        super().__init__(method, train, batch)
        self.x, self.y = train.x, train.y

    def epoch(self) -> Work[None]:
        self.loss.zero_()
        for count, part in enumerate(self.new_order().split(self.batch), start=1):
            self.loss += self.method.step(self.x[part], self.y[part])
            if count % STEPS_PER_TURN == 0:
                yield None


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
