"""Progress of runs: a live table on a terminal, plain lines elsewhere, and TensorBoard on request."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from remnant.errors import UserError
from remnant.experiments.execute import Progress, Watcher

from .console import print_text

COLUMNS = ("task", "epoch", "loss", "accuracy", "steps/s", "left")


class SeedStatus:
    """The progress of one seed, as text for each column."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.first_share: float | None = None  # of the work, at the first report: a resumed run starts in the middle
        self.cells: dict[str, str] = {}
        self.finished = False

    def update(self, progress: Progress) -> None:
        self.cells["task"] = f"{progress.task + 1}/{progress.tasks}"
        if (epoch := progress.epoch) is not None:
            unknown = epoch.valid_accuracy != epoch.valid_accuracy
            self.cells |= {
                "epoch": f"{epoch.epoch}/{epoch.epochs}",
                "loss": f"{epoch.loss:.3f}",
                "accuracy": "–" if unknown else f"{100 * epoch.valid_accuracy:.1f} %",
                "steps/s": f"{epoch.steps / max(epoch.seconds, 1e-9):,.0f}",
                "left": self._time_left((progress.task + epoch.epoch / epoch.epochs) / progress.tasks),
            }
        if progress.row:
            self.cells["accuracy"] = f"{100 * sum(progress.row) / len(progress.row):.1f} %"
        if progress.finished:
            self.cells |= {"epoch": "done", "left": f"took {_duration(progress.seconds)}"}
            self.finished = True

    def line(self) -> str:
        """All cells in one line. Once finished, shows elapsed instead of remaining time."""
        words = {column: f"{column} {self.cells[column]}" for column in COLUMNS if column in self.cells}
        if self.finished:
            words["left"] = self.cells["left"]
        return "  ".join(words.values())

    def _time_left(self, share: float) -> str:
        if self.first_share is None:
            self.first_share, self.start = share, time.perf_counter()
            return "?"
        done = share - self.first_share
        return _duration((time.perf_counter() - self.start) / done * (1 - share) if done > 0 else 0.0)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


class Display:
    """Shows the progress of all seeds. An instance is a `Watcher`."""

    def __init__(self, console: Console, title: str, *, quiet: bool, tensorboard: Path | None) -> None:
        self._console, self._title, self._quiet = console, title, quiet
        self._seeds: dict[int, SeedStatus] = {}
        self._title_printed = False
        self._tensorboard = TensorBoard(tensorboard) if tensorboard else None
        self.live = Live(console=console, refresh_per_second=4) if console.is_terminal and not quiet else None

    def __call__(self, progress: Progress) -> None:
        if progress.note and (progress.serious or not self._quiet):
            self._print(progress.seed, progress.note)
        if not progress.tasks:  # only a note
            return
        status = self._seeds.setdefault(progress.seed, SeedStatus())
        status.update(progress)
        if self._tensorboard:
            self._tensorboard.write(progress)
        if self.live:
            self.live.update(self._table())
        elif not self._quiet and (progress.row or progress.finished):
            self._print(progress.seed, status.line())

    def _print(self, seed: int, text: str) -> None:
        if self.live is None and not self._title_printed:  # a log may hold the lines of several plans
            print_text(self._title, self._console)
            self._title_printed = True
        print_text(f"seed {seed}: {text}", self._console)

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim", title=self._title, title_justify="left")
        for column in ("seed", *COLUMNS):
            table.add_column(column, justify="right")
        for seed, status in sorted(self._seeds.items()):
            table.add_row(str(seed), *(status.cells.get(column, "") for column in COLUMNS))
        return table


@contextmanager
def show_progress(console: Console, *, quiet: bool, title: str, tensorboard: Path | None = None) -> Iterator[Watcher]:
    """Gives a watcher that shows the progress of runs until the block ends."""
    display = Display(console, title, quiet=quiet, tensorboard=tensorboard)
    with display.live or nullcontext():
        yield display


class TensorBoard:
    """Writes the numbers of each seed to its own TensorBoard log."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError("--tensorboard needs TensorBoard: pip install 'remnant[tensorboard]'.") from None
        self._new_writer: Any = SummaryWriter
        self._folder = folder
        self._writers: dict[int, Any] = {}
        self._epochs: dict[int, int] = {}

    def write(self, progress: Progress) -> None:
        if progress.seed not in self._writers:
            self._writers[progress.seed] = self._new_writer(str(self._folder / f"seed{progress.seed}"))
        writer = self._writers[progress.seed]
        if progress.epoch is not None:
            epoch = self._epochs[progress.seed] = self._epochs.get(progress.seed, 0) + 1
            for name in ("loss", "valid_loss", "valid_accuracy", "lr"):
                writer.add_scalar(f"epoch/{name}", getattr(progress.epoch, name), epoch)
        for task, accuracy in enumerate(progress.row):
            writer.add_scalar(f"accuracy/task{task + 1}", accuracy, progress.task + 1)
        writer.flush()
