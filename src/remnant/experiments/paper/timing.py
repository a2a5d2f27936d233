"""Table 2: how long methods train, timed one after another in one process, on the same machine and data.

Times of finished runs say little of a method: others may have had the machine too. Here every method takes the same steps the
same way (recorded into CUDA graphs on a GPU, without kernels written for one of them), at the first, the middle and the last
task, since what some methods do in a step grows with the tasks behind them. Of a long epoch a part is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from remnant.accelerated import Fastest
from remnant.data import Split, Task
from remnant.methods import Method
from remnant.training import RandomState, Schedule, Trainer, at_once

from ..execute.factory import build_method
from ..execute.plan import pick_device, prepare
from ..runs.environment import environment
from ..runs.files import RunError
from ..settings.resolve import Settings, resolve
from .tables import Row
from .times import REFERENCE, Timing, save

MOST = 1000  # steps that are timed of an epoch: each takes as long as the next


def measure(settings: Settings, device: torch.device) -> Timing:
    """Of seed 0. Tasks between those timed are only started and finished."""
    prepare(device, deterministic=False, tf32=True)
    RandomState(0, device).use()
    trainer = Trainer(Schedule(lr=settings.options["lr"], **settings.training), Fastest("captured"))
    epochs, ends = [], []
    # All on one stream, as in a run: another would not wait for what this one has queued.
    with torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext():
        stream, method = build_method(settings, 0, device)
        tasks = method.curriculum(stream)
        timed = sorted({0, len(tasks) // 2, len(tasks) - 1})
        for number, task in enumerate(tasks):
            here = task.to(device)
            method.start(number)
            if number in timed:
                epochs.append(_epoch(trainer, method, here))
                if trainer.fallback:
                    raise RunError(f"{settings.method} on {settings.benchmark} is not timed: {trainer.fallback}")
            ends.append(_seconds(device, partial(method.finish, number, here.train)))
    return Timing(settings.digest, tuple(epochs), sum(ends) / len(ends))


def _epoch(trainer: Trainer, method: Method, task: Task) -> float:
    """Steps that are taken twice, as the first time sets libraries up, and counted as often as an epoch has them."""
    rows = min(len(task.train), MOST * trainer.schedule.batch)
    part = Split.of(task.train.x[:rows], task.train.y[:rows])
    steps = at_once(trainer.ways.steps(method, part, trainer.schedule.batch))

    def once() -> None:
        method.on_epoch_start(0, trainer.schedule.epochs, steps.count)
        for start in steps.epoch():
            if start is not None:
                start()

    once()
    return _seconds(method.device, once) * len(task.train) / rows


def _seconds(device: torch.device, work: Callable[[], None]) -> float:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start


def by_benchmark(rows: Sequence[Row]) -> list[list[Row]]:
    return [[row for row in rows if row.benchmark == name] for name in dict.fromkeys(row.benchmark for row in rows)]


def measure_all(rows: Sequence[Row], device: str, root: Path, say: Callable[[str], None]) -> None:
    """GPM and every row's method, the rows being of one benchmark. Ratios hold within one process, so its file is made anew.

    It is written after every method: what was timed before someone stops it stays. A method that this device cannot take as
    the others are is left out; what was wrong is said in the end.
    """
    chosen = pick_device(device)
    benchmark = rows[0].benchmark
    settings = {REFERENCE: resolve(benchmark, REFERENCE), **{row.method: row.settings for row in rows}}
    timings, errors = {}, []
    for method, own in settings.items():
        try:
            timings[method] = measure(own, chosen)
        except torch.cuda.OutOfMemoryError as error:
            errors.append(f"{method} on {benchmark}: the GPU ran out of memory. {str(error).splitlines()[0]}")
            continue
        except RunError as error:
            errors.append(str(error))
            continue
        say(f"{benchmark} {method}: {timings[method].epoch:.3g} s an epoch")
        content = {"environment": environment(chosen), "methods": {name: asdict(t) for name, t in timings.items()}}
        save(root, benchmark, content)
    if errors:
        raise RunError(" ".join(errors))
