"""Several runs on one GPU: each has its own CUDA stream, and one thread advances them in turn."""

import gc
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch

from remnant.errors import RunError

from ..runs import RunFolder
from .one_run import RunInProgress, Watcher

if TYPE_CHECKING:
    from .launch import Plan

POLL = 1e-4  # seconds between two checks of the device; an epoch takes a thousand times as long


def run_on_gpu(plan: "Plan", folders: Sequence[RunFolder], device: torch.device, watch: Watcher) -> None:
    """Runs these seeds of a plan side by side."""
    with ExitStack() as locks:
        for folder in folders:
            locks.enter_context(folder.lock())
        # Another process may have finished one before its lock was taken.
        runs = [RunInProgress(plan, folder, device, watch) for folder in folders if not folder.finished]
        try:
            run_side_by_side(runs, device)
        except torch.cuda.OutOfMemoryError as error:
            raise RunError(
                f"The GPU ran out of memory ({str(error).splitlines()[0]}). Finished tasks are kept: run the same "
                f"command with --parallel {max(1, len(runs) // 2)}."
            ) from error


def run_side_by_side(runs: Sequence[RunInProgress], device: torch.device) -> None:
    """Advances the runs in turn until all are finished. Each queues a little work on its own CUDA stream."""
    # Every capture collects garbage first, and all runs wait for it: 0.1 s with torch's modules, 0.01 s without.
    gc.collect()
    gc.freeze()
    with ExitStack() as threads:
        threads.callback(gc.unfreeze)
        active = [_ScheduledRun(run, device, threads) for run in runs]
        while active:
            active = [run for run in active if run.advance()]
            if active and all(run.blocking for run in active):
                # Sleep until one of them is ready. A busy loop would take the interpreter away from their threads.
                wait([run.blocking for run in active if run.blocking], return_when=FIRST_COMPLETED)
            else:
                time.sleep(POLL)  # lets the other threads have the interpreter


class _ScheduledRun:
    """A run on its own CUDA stream. Its blocking functions (starting a graph, writing a file) run in its own thread."""

    def __init__(self, run: RunInProgress, device: torch.device, threads: ExitStack) -> None:
        self.run, self.work = run, run.work()
        self.stream = torch.cuda.Stream(device)
        self.thread = threads.enter_context(
            ThreadPoolExecutor(1, initializer=torch.cuda.set_stream, initargs=(self.stream,))
        )
        self.blocking: Future[None] | None = None

    def advance(self) -> bool:
        """Lets the run queue its next work, unless its blocking function is still busy. False at its end."""
        if self.blocking is not None:
            if not self.blocking.done():
                return True
            self.blocking.result()
            self.blocking = None
        self.run.random.use()
        with torch.cuda.stream(self.stream):
            for blocking in self.work:
                if blocking is not None:
                    self.blocking = self.thread.submit(blocking)
                return True
        return False
