"""Runs plans and shows their progress: a live table on a terminal, lines elsewhere, and TensorBoard on request."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from remnant.errors import UserError
from remnant.evaluation import Spread
from remnant.experiments.execute import Plan, Progress, Watcher, run
from remnant.experiments.runs import RunFolder
from remnant.experiments.settings import recipe, resolve

from .app import err, print_text
from .tables import print_accuracies

COLUMNS = ("task", "epoch", "loss", "accuracy", "steps/s", "left")


@dataclass
class SeedStatus:
    """The progress of one seed, as text for each column."""

    cells: dict[str, str] = field(default_factory=dict)
    first: tuple[float, float] | None = None  # share of the work and time: a resumed run starts in the middle

    def update(self, progress: Progress) -> None:
        self.cells["task"] = f"{progress.task + 1}/{progress.tasks}"
        if (epoch := progress.epoch) is not None:
            share, now = (progress.task + epoch.epoch / epoch.epochs) / progress.tasks, time.perf_counter()
            self.first = self.first or (share, now)
            done = share - self.first[0]
            left = (now - self.first[1]) / done * (1 - share) if done > 0 else None
            self.cells |= {
                "epoch": f"{epoch.epoch}/{epoch.epochs}",
                "loss": f"{epoch.loss:.3f}",
                "accuracy": "–" if isnan(epoch.valid_accuracy) else f"{100 * epoch.valid_accuracy:.1f} %",
                "steps/s": f"{epoch.steps / max(epoch.seconds, 1e-9):,.0f}",
                "left": "?" if left is None else _duration(left),
            }
        if progress.row:
            self.cells["accuracy"] = f"{100 * sum(progress.row) / len(progress.row):.1f} %"
        if progress.finished:  # elapsed instead of remaining time
            self.cells |= {"epoch": "done", "left": f"took {_duration(progress.seconds)}"}

    def line(self) -> str:
        words = {column: f"{column} {self.cells[column]}" for column in COLUMNS if column in self.cells}
        return "  ".join(words.values()).replace("left took", "took")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


@contextmanager
def show_progress(console: Console, *, quiet: bool, title: str, tensorboard: Path | None = None) -> Iterator[Watcher]:
    """Gives a watcher that shows the progress of all seeds until the block ends."""
    seeds: dict[int, SeedStatus] = defaultdict(SeedStatus)
    live = Live(console=console, refresh_per_second=4) if console.is_terminal and not quiet else None
    log = tensorboard_log(tensorboard) if tensorboard else None
    heading = [] if live else [title]  # a log may hold the lines of several plans

    def print_line(seed: int, text: str) -> None:
        while heading:
            print_text(heading.pop(), console)
        print_text(f"seed {seed}: {text}", console)

    def watch(progress: Progress) -> None:
        if progress.note and (progress.serious or not quiet):
            print_line(progress.seed, progress.note)
        if not progress.tasks:  # only a note
            return
        if log:
            log(progress)
        if quiet:
            return
        seeds[progress.seed].update(progress)
        if live:
            live.update(_table(title, seeds))
        elif progress.row or progress.finished:
            print_line(progress.seed, seeds[progress.seed].line())

    with live or nullcontext():
        yield watch


def _table(title: str, seeds: Mapping[int, SeedStatus]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", title=Text(title, "table.title"), title_justify="left")
    for column in ("seed", *COLUMNS):
        table.add_column(column, justify="right")
    for seed, status in sorted(seeds.items()):
        table.add_row(str(seed), *(status.cells.get(column, "") for column in COLUMNS))
    return table


def tensorboard_log(folder: Path) -> Watcher:
    """A watcher that writes the numbers of each seed to its own TensorBoard log."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("--tensorboard needs TensorBoard: pip install 'remnant[tensorboard]'.") from None
    new_writer: Any = SummaryWriter
    writers: dict[int, Any] = {}
    epochs: Counter[int] = Counter()

    def write(progress: Progress) -> None:
        seed = progress.seed
        writer = writers[seed] = writers.get(seed) or new_writer(str(folder / f"seed{seed}"))
        if progress.epoch is not None:
            epochs[seed] += 1
            for name in ("loss", "valid_loss", "valid_accuracy", "lr"):
                writer.add_scalar(f"epoch/{name}", getattr(progress.epoch, name), epochs[seed])
        for task, accuracy in enumerate(progress.row):
            writer.add_scalar(f"accuracy/task{task + 1}", accuracy, progress.task + 1)
        writer.flush()

    return write


def run_plan(plan: Plan, quiet: bool, tensorboard: Path | None = None) -> list[RunFolder]:
    title = f"{plan.settings.benchmark} · {plan.settings.method}"
    with show_progress(err, quiet=quiet, title=title, tensorboard=tensorboard) as watch:
        return run(plan, watch)


def run_and_print(plan: Plan, quiet: bool, tensorboard: Path | None = None) -> None:
    """Runs a plan. Prints R of the first seed, then ACC and BWT over all seeds beside the paper's."""
    settings, folders = plan.settings, run_plan(plan, quiet, tensorboard)
    finished = [folder for folder in folders if folder.finished]
    if finished and not quiet and (first := finished[0].matrix()) is not None:
        print_accuracies(first, f"Accuracy, %, after learning each task (seed {finished[0].seed})")
    results = [folder.result() or {} for folder in finished]
    acc = Spread.of([result.get("acc") for result in results], 100).text(2)
    bwt = Spread.of([result.get("bwt") for result in results]).text(3, "+")
    seconds = Spread.of([sum(result.get("seconds", {}).values()) for result in results]).text(0)
    print_text(f"ACC {acc} %   BWT {bwt}   {seconds} s a seed, {len(results)} seed{'s' * (len(results) != 1)}")
    paper = recipe(settings.benchmark, settings.protocol).paper.get(settings.method)
    # The paper's figures are for the recipe's settings, and would mislead beside others.
    if paper and paper.acc and settings == resolve(settings.benchmark, settings.method, (), settings.protocol):
        print_text(f"paper: ACC {paper.acc:.2f} %   BWT {Spread(paper.bwt).text(2, '+')}", style="dim")
    if finished:
        print_text(f"in {finished[0].path.parent}", style="dim")
