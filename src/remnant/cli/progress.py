"""Runs plans and shows their progress: a live table on a terminal, lines elsewhere, and a log on request."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import isnan
from typing import Protocol

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from remnant.evaluation import AccuracyMatrix, Spread
from remnant.experiments.execute import Plan, Progress, Watcher, run_together
from remnant.experiments.settings import recipe, resolve

from .app import err, print_failure, print_text
from .log import log_to

COLUMNS = ("task", "epoch", "loss", "accuracy", "steps/s", "left")


@dataclass
class SeedStatus:
    """The progress of one seed, as text for each column."""

    cells: dict[str, str] = field(default_factory=dict)
    first: tuple[float, float] | None = None  # share of the work and time: a resumed run starts in the middle

    def update(self, progress: Progress) -> None:
        self.cells["task"] = f"{progress.task + 1}/{progress.tasks}"
        seconds: float | None = progress.seconds
        if (epoch := progress.epoch) is not None:
            share, now = (progress.task + epoch.epoch / epoch.epochs) / progress.tasks, time.perf_counter()
            self.first = self.first or (share, now)
            done = share - self.first[0]
            seconds = (now - self.first[1]) / done * (1 - share) if done > 0 else None
            self.cells |= {
                "epoch": f"{epoch.epoch}/{epoch.epochs}",
                "loss": f"{epoch.loss:.3f}",
                "accuracy": "–" if isnan(epoch.valid_accuracy) else f"val {100 * epoch.valid_accuracy:.1f} %",
                "steps/s": f"{epoch.steps / max(epoch.seconds, 1e-9):,.0f}",
            }
        if progress.row:
            self.cells["accuracy"] = f"mean test {100 * sum(progress.row) / len(progress.row):.1f} %"
        elif epoch is not None or progress.finished:  # which has elapsed instead of remaining time
            time_left = "?" if seconds is None else f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
            self.cells["left"] = f"took {time_left}" if progress.finished else time_left
        if progress.finished:
            self.cells["epoch"] = "done"


class Display(Protocol):
    """Shows the progress of a run. `name` tells plans apart, and `log` gets the progress too."""

    def __call__(self, progress: Progress, *, name: str = "", log: Watcher | None = None) -> None: ...


@contextmanager
def show_progress(console: Console, *, quiet: bool, title: str) -> Iterator[Display]:
    """Gives a watcher that shows the progress of all runs until the block ends."""
    rows: dict[tuple[str, int], SeedStatus] = defaultdict(SeedStatus)
    live = Live(console=console, refresh_per_second=4) if console.is_terminal and not quiet else None
    printed_title = live is not None  # a log may hold the lines of several commands

    def watch(progress: Progress, *, name: str = "", log: Watcher | None = None) -> None:
        nonlocal printed_title
        row, lines = (name, progress.seed), [progress.note] if progress.note and (progress.serious or not quiet) else []
        if log:
            log(progress)
        if progress.tasks and not quiet:  # not only a note
            rows[row].update(progress)
            if (not live and progress.row) or (progress.finished and (name or not live)):
                cells = rows[row].cells
                line = "  ".join(f"{column} {cells[column]}" for column in COLUMNS if column in cells)
                lines.append(line.replace("left took", "took"))
            if name and progress.finished:  # there may be hundreds: the table keeps those under way
                del rows[row]
            if live:
                live.update(_table(title, rows))
        for line in lines:
            line = f"{name}, seed {progress.seed}: {line}" if name else f"seed {progress.seed}: {line}"
            print_text(line if printed_title else f"{title}\n{line}", console)
            printed_title = True

    with live or nullcontext():
        yield watch


def _table(title: str, rows: Mapping[tuple[str, int], SeedStatus]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", title=Text(title, "table.title"), title_justify="left")
    named = any(name for name, _ in rows)
    for column in ("run",) * named + ("seed", *COLUMNS):
        table.add_column(column, justify="left" if column == "run" else "right")
    for (name, seed), status in sorted(rows.items()):
        table.add_row(*(name,) * named, str(seed), *(status.cells.get(column, "") for column in COLUMNS))
    return table


def run_plans(title: str, plans: Mapping[str, Plan], quiet: bool, log: str = "", results: bool = True) -> bool:
    """Runs named plans together in one display. Prints R of each first seed, then ACC and BWT beside the paper's.

    Errors of single plans are printed too. Returns whether there were none.
    """
    with ExitStack() as stack:
        watch = stack.enter_context(show_progress(err, quiet=quiet, title=title))
        watchers = [
            partial(watch, name=name, log=stack.enter_context(log_to(log, plan, quiet)) if log else None)
            for name, plan in plans.items()
        ]
        outcomes = run_together(list(plans.values()), watchers)
    for (name, plan), folders in zip(plans.items(), outcomes, strict=True):
        if isinstance(folders, Exception):
            print_failure(folders, name)
        elif results:
            if not quiet and (first := folders[0].matrix()) is not None:
                print_accuracies(first, f"Accuracy, %, after learning each task (seed {folders[0].seed})")
            found = [folder.result() or {} for folder in folders]
            acc = Spread.of([result.get("acc") for result in found], 100).text(2)
            bwt = Spread.of([result.get("bwt") for result in found]).text(3, "+")
            seconds = Spread.of([sum(result.get("seconds", {}).values()) for result in found]).text(0)
            print_text(f"ACC {acc} %   BWT {bwt}   {seconds} s per seed, {len(found)} seed{'s' * (len(found) != 1)}")
            settings = plan.settings
            paper = recipe(settings.benchmark, settings.protocol).paper.get(settings.method)
            # The paper's figures are for the recipe's settings, and would mislead beside others.
            if paper and paper.acc and settings == resolve(settings.benchmark, settings.method, (), settings.protocol):
                print_text(f"paper: ACC {paper.acc:.2f} %   BWT {Spread(paper.bwt).text(2, '+')}", style="dim")
            print_text(f"The results are in {folders[0].path.parent}", style="dim")
    return not any(isinstance(outcome, Exception) for outcome in outcomes)


def print_accuracies(matrix: AccuracyMatrix, title: str) -> None:
    """Prints R in per cent, a row for each task learnt. Rows that were not measured are left out."""
    heading = "".join(f"{task + 1:6}" for task in range(matrix.tasks))
    text = Text(f"{title}\n", "italic").append(Text(f"after{heading}", "not italic bold"))
    for task, row in enumerate(100 * matrix.values):
        text.append(f"\n{task + 1:<5}" if not np.isnan(row).all() else "", "not italic")
        for value in row[~np.isnan(row)]:
            colour = "green" if value >= 90 else "yellow" if value >= 60 else "red"
            text.append(f"{value:6.1f}", f"not italic {colour}")
    print_text(text)
