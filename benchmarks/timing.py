"""Clocks for all the scripts. The fastest of several goes: what slows a go down is other work on the machine."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable

import torch


def now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


own = time.thread_time  # of one thread's work, without the time others had the core


def fastest(work: Callable[[], object], goes: int, clock: Callable[[], float] = now) -> float:
    """Seconds of the fastest go, after one to warm up where there are several."""
    if goes > 1:
        work()
    times = []
    for _ in range(goes):
        start = clock()
        work()
        times.append(clock() - start)
    return min(times)


def fastest_stretch(work: Iterable[object], at_most: int = 10**9) -> float:
    """Seconds of the fastest stretch between two yields of an iterator, of the first so many, on one thread."""
    best, start = float("inf"), own()
    for count, _ in enumerate(work, start=1):
        end = own()
        best, start = min(best, end - start), end
        if count >= at_most:
            break
    return best


def machine() -> str:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"
    return f"{device}, torch {torch.__version__}, {torch.get_num_threads()} thread(s)"
