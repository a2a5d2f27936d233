"""Who listens to runs: a live line a seed on a terminal, plain lines elsewhere, TensorBoard when asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from remnant.experiments.execute.run import Progress, Watcher
from remnant.experiments.runs.folder import RunError


class Line:
    """The state of one seed, as words."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.begun: float | None = None  # how far the run was when first heard of: a resumed one starts in the middle
        self.words: dict[str, str] = {}
        self.over = False

    def hear(self, progress: Progress) -> None:
        self.words["task"] = f"{progress.task + 1}/{progress.tasks}"
        if progress.epoch is not None:
            epoch = progress.epoch
            self.words |= {
                "epoch": f"{epoch.epoch}/{epoch.epochs}",
                "loss": f"{epoch.loss:.3f}",
                "accuracy": "–"
                if epoch.valid_accuracy != epoch.valid_accuracy
                else f"{100 * epoch.valid_accuracy:.1f} %",
                "steps/s": f"{epoch.steps / max(epoch.seconds, 1e-9):,.0f}",
                "left": self._left((progress.task + epoch.epoch / epoch.epochs) / progress.tasks),
            }
        if progress.row:
            self.words |= {"accuracy": f"{100 * sum(progress.row) / len(progress.row):.1f} %"}
        if progress.finished:
            self.words |= {"epoch": "done", "left": f"took {_duration(progress.seconds)}"}
            self.over = True

    def sentence(self) -> str:
        """All of it in a row. What it took stands where what is left stood, and is not called that."""
        return "  ".join(
            self.words[column] if column == "left" and self.over else f"{column} {self.words[column]}"
            for column in COLUMNS
            if column in self.words
        )

    def _left(self, share: float) -> str:
        if self.begun is None:
            self.begun, self.start = share, time.perf_counter()
            return "?"
        done = share - self.begun
        left = (time.perf_counter() - self.start) / done * (1 - share) if done > 0 else 0.0
        return _duration(left)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


COLUMNS = ("task", "epoch", "loss", "accuracy", "steps/s", "left")


@contextmanager
def watching(console: Console, *, quiet: bool, title: str, tensorboard: Path | None = None) -> Iterator[Watcher]:
    """A watcher for as long as runs last."""
    lines: dict[int, Line] = {}
    titled = False
    board = Board(tensorboard) if tensorboard else None

    def table() -> Table:
        drawn = Table(box=None, pad_edge=False, header_style="dim", title=title, title_justify="left")
        for column in ("seed", *COLUMNS):
            drawn.add_column(column, justify="right")
        for seed, line in sorted(lines.items()):
            drawn.add_row(str(seed), *(line.words.get(column, "") for column in COLUMNS))
        return drawn

    live = Live(console=console, refresh_per_second=4) if console.is_terminal and not quiet else None

    def say(seed: int, words: str) -> None:
        nonlocal titled
        if live is None and not titled:  # in one log of several plans, whose lines these are
            console.print(title, highlight=False, soft_wrap=True, markup=False)
            titled = True
        console.print(f"seed {seed}: {words}", highlight=False, soft_wrap=True, markup=False)

    def watch(progress: Progress) -> None:
        if not progress.tasks:
            if not quiet:
                say(progress.seed, progress.note)
            return
        line = lines.setdefault(progress.seed, Line())
        line.hear(progress)
        if board:
            board.hear(progress)
        if progress.note and (progress.serious or not quiet):
            say(progress.seed, progress.note)
        if live:
            live.update(table())
        elif not quiet and (progress.row or progress.finished):
            say(progress.seed, line.sentence())

    if live is None:
        yield watch
    else:
        with live:
            yield watch


class Board:
    """The same numbers for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise RunError("--tensorboard needs TensorBoard: pip install 'remnant[tensorboard]'.") from None
        self._make: Any = SummaryWriter
        self._folder = folder
        self._writers: dict[int, Any] = {}
        self._epochs: dict[int, int] = {}

    def hear(self, progress: Progress) -> None:
        if progress.seed not in self._writers:
            self._writers[progress.seed] = self._make(str(self._folder / f"seed{progress.seed}"))
        writer = self._writers[progress.seed]
        if progress.epoch is not None:
            at = self._epochs[progress.seed] = self._epochs.get(progress.seed, 0) + 1
            for name in ("loss", "valid_loss", "valid_accuracy", "lr"):
                writer.add_scalar(f"epoch/{name}", getattr(progress.epoch, name), at)
        for task, accuracy in enumerate(progress.row):
            writer.add_scalar(f"accuracy/task{task + 1}", accuracy, progress.task + 1)
        writer.flush()
