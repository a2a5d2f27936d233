"""`--log`: a watcher that passes the progress of each seed to a logger."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from remnant.errors import UserError
from remnant.experiments.execute import Plan, Progress, Watcher
from remnant.experiments.runs import RunFolder
from remnant.lazy import import_extra

from .app import print_note
from .loggers import LOGGERS, Logger


@contextmanager
def log_to(name: str, plan: Plan, quiet: bool) -> Iterator[Watcher]:
    """Yields a watcher that logs each seed of a plan. An error of a logger ends the logging but not the run."""
    if name not in LOGGERS:
        raise UserError(f"--log {name}: there is no such logger. Choose from: {', '.join(LOGGERS)}.")
    logger, module = LOGGERS[name]
    import_extra(module, f"--log {name}", name)
    logs: dict[int, Logger] = {}
    working = True

    def watch(progress: Progress) -> None:
        nonlocal working
        if not working or not progress.tasks:  # only a note
            return
        try:
            if (seed := progress.seed) not in logs:
                logs[seed] = logger(RunFolder.create(plan.root, plan.settings, seed), quiet)
            for axis, step, numbers in _numbers(progress):
                logs[seed].write(axis, step, numbers)
            if progress.finished:
                logs.pop(seed).close(finished=True)
        except Exception as error:  # of another library, or of its server
            working = False
            print_note(f"--log {name} stopped: {type(error).__name__}: {error}. The run continues.")

    try:
        yield watch
    finally:
        for log in logs.values():
            with suppress(Exception):
                log.close(finished=False)


def _numbers(progress: Progress) -> Iterator[tuple[str, int, dict[str, float]]]:
    """Yields an axis, a step on it and the numbers of this step."""
    if (epoch := progress.epoch) is not None:
        values = {name: getattr(epoch, name) for name in ("loss", "valid_loss", "valid_accuracy", "lr")}
        step = progress.task * epoch.epochs + epoch.epoch
        yield "epoch", step, {f"epoch/{name}": value for name, value in values.items() if not math.isnan(value)}
    if row := progress.row:
        accuracies = {f"accuracy/task{task}": accuracy for task, accuracy in enumerate(row, 1)}
        yield "task", progress.task + 1, accuracies | {"accuracy/mean": sum(row) / len(row)}
