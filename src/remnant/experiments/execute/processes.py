"""Jobs on this machine: each in its own process, on the next free device."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import torch

from .one_run import Progress
from .places import OnMessage, WorkerError, failures

if TYPE_CHECKING:
    from .launch import Job


class Processes:
    """Runs jobs on this machine. Each worker is a device that takes one job at a time: every core, or every GPU."""

    def __init__(self, workers: Sequence[torch.device]) -> None:
        self.workers = workers
        self.gpus = sum(device.type == "cuda" for device in workers)

    def run(self, jobs: Sequence[Job], on_message: OnMessage) -> None:
        context = multiprocessing.get_context("spawn")
        waiting, free = list(jobs), list(self.workers)
        running: dict[Any, tuple[Job, torch.device, Any]] = {}
        ready: Any
        try:
            while waiting or running:
                while waiting and free:
                    job, device = waiting.pop(0), free.pop(0)
                    messages, sender = context.Pipe(duplex=False)
                    process = context.Process(target=_run_in_child, args=(job, device, sender))
                    with _holding_interrupts():
                        process.start()
                        running[messages] = job, device, process
                    sender.close()  # so that only the child holds a sender, and the pipe ends with the child
                for ready in wait(list(running)):
                    job, device, process = running[ready]
                    try:
                        message = ready.recv()
                    except (EOFError, OSError):
                        del running[ready]
                        free.append(device)
                        process.join()
                        message = f"{job}: its process ended with code {process.exitcode}." if process.exitcode else ""
                    if message:
                        on_message(job, message if isinstance(message, Progress) else WorkerError(message))
        finally:
            for _, _, process in running.values():  # after an interrupt, since the interpreter would wait for them
                process.terminate()


def _run_in_child(job: Job, device: torch.device, messages: Connection) -> None:
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    for sentence in failures(job, lambda: job.run(messages.send, device), sys.stderr.write):
        messages.send(sentence)


@contextmanager
def _holding_interrupts() -> Iterator[None]:
    """Starts children that never see Ctrl-C, which would print tracebacks. The parent gets it afterwards and ends them."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    resource_tracker.ensure_running()  # started later, it would let the signal through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exit_with_parent() -> None:
    """Ends this process when its parent is killed. Otherwise it would keep the run's lock and wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
