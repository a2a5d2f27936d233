"""Table 2: training times, measured one method after another in one process on the same machine and data.

Finished runs may have shared a machine, so their times say little. Here every method takes its steps in the same way (CUDA
graphs on a GPU), at the first, the middle and the last task: the steps of some methods grow with the number of tasks.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from remnant.accelerated import FastestTrainer
from remnant.data import Split, Task
from remnant.errors import RunError
from remnant.evaluation import NO_VALUE
from remnant.files import damaged, explained, read_json, write_json
from remnant.methods import Method
from remnant.training import RandomState, Schedule, Trainer, run_to_completion

from ..execute import build_method, pick_devices, prepare_torch
from ..runs import environment
from ..settings import Settings, recipe, resolve
from .tables import NOT_RUN, Row

TIMING_TABLE = "table2"
TIMES_FOLDER = "times"
REFERENCE = "gpm"
MOST_STEPS = 1000  # timed steps of an epoch


@dataclass(frozen=True)
class Timing:
    """Seconds of an epoch at the first, the middle and the last task, and of a task's end (the mean)."""

    digest: str
    epochs: tuple[float, ...]
    finish: float

    @property
    def epoch(self) -> float:
        """The mean over all tasks, if times grow linearly between the timed tasks (trapezoidal rule)."""
        return fmean([(a + b) / 2 for a, b in pairwise(self.epochs)] or self.epochs)

    def task(self, epochs: int) -> float:
        """Seconds of a task: its epochs, and its end, where GPM finds its bases and EWC its Fisher information."""
        return epochs * self.epoch + self.finish


def measure(settings: Settings, device: torch.device) -> Timing:
    """Times one method with seed 0. Tasks that are not timed are only started and finished."""
    prepare_torch(device, deterministic=False, tf32=True)
    RandomState(0, device).use()
    trainer = FastestTrainer(Schedule(lr=settings.options["lr"], **settings.training), "captured")
    epochs, ends = [], []
    # One stream for everything, as in a run: a second one would not wait for the work queued on the first.
    with torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext():
        stream, method = build_method(settings, 0, device)
        tasks = method.curriculum(stream)
        timed = {0, len(tasks) // 2, len(tasks) - 1}
        for number, task in enumerate(tasks):
            here = task.to(device)
            method.start(number)
            if number in timed:
                epochs.append(_epoch(trainer, method, here))
                if trainer.fallback:
                    raise RunError(trainer.fallback)
            ends.append(_seconds(device, partial(method.finish, number, here.train)))
    return Timing(settings.digest, tuple(epochs), fmean(ends))


def _epoch(trainer: Trainer, method: Method, task: Task) -> float:
    """Seconds of an epoch, from at most `MOST_STEPS` steps. The first of two rounds lets libraries set themselves up."""
    rows = min(len(task.train), MOST_STEPS * trainer.schedule.batch)
    part = Split.of(task.train.x[:rows], task.train.y[:rows])
    steps = run_to_completion(trainer.steps(method, part))

    def once() -> None:
        method.on_epoch_start(0, trainer.schedule.epochs, steps.count)
        run_to_completion(steps.epoch())

    once()
    return _seconds(method.device, once) * len(task.train) / rows


def _seconds(device: torch.device, work: Callable[[], None]) -> float:
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    work()
    if cuda:
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def time_methods(rows: Sequence[Row], device: str, root: Path, report: Callable[[str], None]) -> None:
    """Times GPM and the method of every row, all on one benchmark, and writes the times after each method.

    A method that this device cannot run in the same way as the others is left out; the error at the end names it.
    """
    chosen, benchmark = pick_devices(device)[0], rows[0].benchmark
    settings = {REFERENCE: resolve(benchmark, REFERENCE), **{row.method: row.settings for row in rows}}
    timings, errors = dict[str, Any](), []
    for method, own in settings.items():
        try:
            timing = measure(own, chosen)
        except (RunError, torch.cuda.OutOfMemoryError) as error:
            errors.append(f"{method} on {benchmark} is not timed: {str(error).splitlines()[0]}")
            continue
        report(f"{benchmark} {method}: {timing.epoch:.3g} s per epoch")
        timings[method] = asdict(timing)
        save_timings(root, benchmark, {"environment": environment(chosen), "methods": timings})
    if errors:
        raise RunError(" ".join(errors))


def save_timings(root: Path, benchmark: str, content: Mapping[str, Any]) -> None:
    """Replaces a benchmark's file of times below `root`."""
    path = root / TIMES_FOLDER / f"{benchmark}.json"
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content)


def load_timings(roots: Sequence[Path], benchmark: str) -> tuple[dict[str, Timing], str]:
    """The times of a benchmark's methods and the device, from the first of these folders that has them."""
    for path in (root / TIMES_FOLDER / f"{benchmark}.json" for root in roots):
        if (content := read_json(path)) is None:
            continue
        try:
            timings = {
                method: Timing(found["digest"], tuple(map(float, found["epochs"])), float(found["finish"]))
                for method, found in content["methods"].items()
            }
            return timings, str(content["environment"]["device"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(path, error) from error
    return {}, ""


def relative_to_gpm(row: Row, timings: Mapping[str, Timing]) -> tuple[float | None, float | None]:
    """A row's training time divided by GPM's, ours and the paper's; None if a time is missing.

    Ours counts all epochs that the recipe allows: early stopping says nothing about speed.
    """
    gpm, paper_gpm = resolve(row.benchmark, REFERENCE), recipe(row.benchmark).paper.get(REFERENCE)
    own, reference = _timing(row.settings, timings) if row.runnable else None, _timing(gpm, timings)
    ours = paper = None
    if own and reference:
        ours = own.task(row.settings.training["epochs"]) / reference.task(gpm.training["epochs"])
    if row.paper.seconds and paper_gpm and paper_gpm.seconds:
        paper = row.paper.seconds / paper_gpm.seconds
    return ours, paper


def _timing(settings: Settings, timings: Mapping[str, Timing]) -> Timing | None:
    found = timings.get(settings.method)
    return found if found and found.digest == settings.digest else None


def timing_rows(rows: Sequence[Row], roots: Sequence[Path]) -> list[dict[str, str]]:
    """Table 2 as text cells."""
    lines = []
    for row in rows:
        timings, device = load_timings(roots, row.benchmark)
        found = _timing(row.settings, timings) if row.runnable else None
        ours, paper = relative_to_gpm(row, timings)
        line = {"benchmark": row.benchmark, "method": row.method}
        line["seconds per epoch"] = f"{found.epoch:.3g}" if found else NOT_RUN
        line["seconds per task end"] = f"{found.finish:.3g}" if found else NO_VALUE
        line["relative to gpm"] = NO_VALUE if ours is None else f"{ours:.2f}"
        line["relative to gpm (paper)"] = NO_VALUE if paper is None else f"{paper:.2f}"
        line["device"] = device if found else NO_VALUE
        lines.append(line)
    return lines
