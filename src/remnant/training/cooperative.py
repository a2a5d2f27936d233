"""What steps of every kind share."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Protocol, TypeVar, cast

from torch import Tensor

Blocking = Callable[[], None]

# What runs in turns: it queues work on the device and yields. A function it yields is to be called before it goes on.
# It takes the host a while, as starting a long graph or writing a file does, so whoever drives several runs calls it in
# another thread and lets the others go meanwhile. It must draw no random numbers and turn no switch of torch's: the whole
# process has but one of each, for the run whose turn it is.
Work = Iterator[Blocking | None]


T = TypeVar("T")


def at_once(work: Generator[Blocking | None, None, T]) -> T:
    """What it gives in the end, for those who have nobody else to let go meanwhile."""
    while True:
        try:
            start = next(work)
        except StopIteration as over:
            return cast(T, over.value)
        if start is not None:
            start()


class Steps(Protocol):
    """A task's steps. `count` of them make an epoch; `loss` then holds the sum of their batches' losses."""

    count: int
    loss: Tensor

    def epoch(self) -> Work:
        """One pass in a new random order; yields between stretches of work."""
        ...


def rows_seen(rows: int, batch: int) -> int:
    """All rows, but for one left alone at the end: a batch of one has no statistics to normalise by. It changes by chance."""
    return rows - 1 if rows % batch == 1 and batch > 1 and rows > 1 else rows
