"""Several runs on one GPU: each has a stream, and a turn to queue a little work on it."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager

import torch

from .run import Run

POLL = 1e-4  # seconds between two looks at what the device has done; an epoch is a thousand times that


def run_side_by_side(runs: Sequence[Run], device: torch.device) -> None:
    """Goes round the runs in one thread; each queues a little work on its own stream, then lets the next one go."""
    with ExitStack() as opened:
        opened.enter_context(_little_to_collect())
        turns = [_Turn(run, device, opened) for run in runs]
        while turns:
            turns = [turn for turn in turns if turn.take()]
            if turns and all(turn.starting for turn in turns):
                # Every run has something on its way: sleep until one has it done. A loop here would keep the starters
                # from going.
                wait([turn.starting for turn in turns if turn.starting], return_when=FIRST_COMPLETED)
            else:
                time.sleep(POLL)  # lets the starters have the interpreter between two rounds


class _Turn:
    """A run on a stream of its own. Its graphs are started and its files written by a thread of its own.

    So starts overlap, and no run waits for another's disk.
    """

    def __init__(self, run: Run, device: torch.device, opened: ExitStack) -> None:
        self.run, self.work = run, run.work()
        self.stream = torch.cuda.Stream(device)
        self.starter = opened.enter_context(
            ThreadPoolExecutor(1, initializer=torch.cuda.set_stream, initargs=(self.stream,))
        )
        self.starting: Future[None] | None = None

    def take(self) -> bool:
        """Lets the run queue its next work unless it is still starting the last; False once it is over."""
        if self.starting is not None:
            if not self.starting.done():
                return True
            self.starting.result()
            self.starting = None
        self.run.random.use()
        with torch.cuda.stream(self.stream):
            for start in self.work:
                if start is not None:
                    self.starting = self.starter.submit(start)
                return True
        return False


@contextmanager
def _little_to_collect() -> Iterator[None]:
    """Lets the garbage collector pass over what is there now: modules, for the most part, and no run's.

    Each capture is preceded by a collection, at which all runs stand still. With torch loaded it takes 0.1 s, without it
    a hundredth.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
