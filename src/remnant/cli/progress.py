"""Runs plans and shows their progress: a live table on a terminal, lines elsewhere, and a log on request."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from math import isnan

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from remnant.evaluation import AccuracyMatrix, Spread
from remnant.experiments.execute import Plan, Progress, Watcher, run
from remnant.experiments.runs import RunFolder
from remnant.experiments.settings import recipe, resolve

from .app import err, print_text
from .log import log_to

NO_LOG: AbstractContextManager[None] = nullcontext()
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
                "accuracy": "–" if isnan(epoch.valid_accuracy) else f"{100 * epoch.valid_accuracy:.1f} %",
                "steps/s": f"{epoch.steps / max(epoch.seconds, 1e-9):,.0f}",
            }
        if progress.row:
            self.cells["accuracy"] = f"{100 * sum(progress.row) / len(progress.row):.1f} %"
        elif epoch is not None or progress.finished:  # which has elapsed instead of remaining time
            time_left = "?" if seconds is None else f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
            self.cells["left"] = f"took {time_left}" if progress.finished else time_left
        if progress.finished:
            self.cells["epoch"] = "done"


@contextmanager
def show_progress(
    console: Console, *, quiet: bool, title: str, log: AbstractContextManager[Watcher | None] = NO_LOG
) -> Iterator[Watcher]:
    """Gives a watcher that shows the progress of all seeds until the block ends, and passes it on to the log."""
    seeds: dict[int, SeedStatus] = defaultdict(SeedStatus)
    live = Live(console=console, refresh_per_second=4) if console.is_terminal and not quiet else None
    printed_title = live is not None  # a log may hold the lines of several plans

    def watch(progress: Progress) -> None:
        nonlocal printed_title
        seed, lines = progress.seed, [progress.note] if progress.note and (progress.serious or not quiet) else []
        if write:
            write(progress)
        if progress.tasks and not quiet:  # not only a note
            seeds[seed].update(progress)
            if live:
                live.update(_table(title, seeds))
            elif progress.row or progress.finished:
                cells = "  ".join(f"{name} {seeds[seed].cells[name]}" for name in COLUMNS if name in seeds[seed].cells)
                lines.append(cells.replace("left took", "took"))
        for line in lines:
            print_text(f"seed {seed}: {line}" if printed_title else f"{title}\nseed {seed}: {line}", console)
            printed_title = True

    with live or nullcontext(), log as write:
        yield watch


def _table(title: str, seeds: Mapping[int, SeedStatus]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", title=Text(title, "table.title"), title_justify="left")
    for column in ("seed", *COLUMNS):
        table.add_column(column, justify="right")
    for seed, status in sorted(seeds.items()):
        table.add_row(str(seed), *(status.cells.get(column, "") for column in COLUMNS))
    return table


def run_plan(plan: Plan, quiet: bool, log: str = "") -> list[RunFolder]:
    title = f"{plan.settings.benchmark} · {plan.settings.method}"
    with show_progress(err, quiet=quiet, title=title, log=log_to(log, plan, quiet) if log else NO_LOG) as watch:
        return run(plan, watch)


def run_and_print(plan: Plan, quiet: bool, log: str = "") -> None:
    """Runs a plan. Prints R of the first seed, then ACC and BWT over all seeds beside the paper's."""
    settings, title = plan.settings, f"{plan.settings.benchmark} · {plan.settings.method}"
    with show_progress(err, quiet=quiet, title=title, log=log_to(log, plan, quiet) if log else NO_LOG) as watch:
        folders = run(plan, watch)
    if not quiet and (first := folders[0].matrix()) is not None:
        print_accuracies(first, f"Accuracy, %, after learning each task (seed {folders[0].seed})")
    results = [folder.result() or {} for folder in folders]
    acc = Spread.of([result.get("acc") for result in results], 100).text(2)
    bwt = Spread.of([result.get("bwt") for result in results]).text(3, "+")
    seconds = Spread.of([sum(result.get("seconds", {}).values()) for result in results]).text(0)
    print_text(f"ACC {acc} %   BWT {bwt}   {seconds} s a seed, {len(results)} seed{'s' * (len(results) != 1)}")
    paper = recipe(settings.benchmark, settings.protocol).paper.get(settings.method)
    # The paper's figures are for the recipe's settings, and would mislead beside others.
    if paper and paper.acc and settings == resolve(settings.benchmark, settings.method, (), settings.protocol):
        print_text(f"paper: ACC {paper.acc:.2f} %   BWT {Spread(paper.bwt).text(2, '+')}", style="dim")
    print_text(f"in {folders[0].path.parent}", style="dim")


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
