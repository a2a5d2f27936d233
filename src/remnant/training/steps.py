"""Plain steps, one by one. They work everywhere; `remnant.accelerated` has faster ways to take the same steps."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Protocol

import torch

from remnant.data import Split
from remnant.methods import Method

from .cooperative import Blocking, Steps, Work, rows_seen
from .evaluation import Validation

PER_TURN = 200  # steps between two chances for other runs to go


class EagerSteps:
    """Plain steps. Works everywhere."""

    def __init__(self, method: Method, train: Split, batch: int) -> None:
        self.method, self.train, self.batch = method, train, batch
        self.x, self.y = train.x, train.y
        self.rows = rows_seen(len(self.y), batch)
        self.count = -(-self.rows // batch)  # steps an epoch
        self.loss = torch.zeros((), device=self.x.device)

    def epoch(self) -> Work:
        self.loss.zero_()
        order = self.method.order(self.train, self.batch)[: self.rows]
        for count, part in enumerate(order.split(self.batch), start=1):
            self.loss += self.method.step(self.x[part], self.y[part])
            if count % PER_TURN == 0:
                yield None


class Ways(Protocol):
    """How a trainer takes steps and validates."""

    fallback: str | None  # why these are slower than they could have been

    def steps(self, method: Method, train: Split, batch: int) -> Generator[Blocking | None, None, Steps]:
        """A task's steps, ready to go."""
        ...

    def validation(self, method: Method, splits: Mapping[int, Split], batch: int) -> Validation:
        """What measures the loss after every epoch; asked for after `steps`."""
        ...


class Plain:
    """Steps one by one, and a plain validation."""

    fallback: str | None = None

    def steps(self, method: Method, train: Split, batch: int) -> Generator[Blocking | None, None, Steps]:
        yield from ()
        return EagerSteps(method, train, batch)

    def validation(self, method: Method, splits: Mapping[int, Split], batch: int) -> Validation:
        return Validation(method, splits, batch)
