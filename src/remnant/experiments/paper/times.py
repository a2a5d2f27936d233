"""What was timed for Table 2: files of it, and the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from ..runs.files import explained
from ..runs.json_file import damaged, read_json, write_json
from ..settings.resolve import Settings, recipe, resolve
from .tables import NOT_RUN, SILENT, Row

TABLE = "table2"
REFERENCE = "gpm"
FOLDER = "times"


@dataclass(frozen=True)
class Timing:
    """Seconds of an epoch at the first, the middle and the last task, and of a task's end (the mean)."""

    digest: str
    epochs: tuple[float, ...]
    finish: float

    @property
    def epoch(self) -> float:
        """The mean over all tasks, taking what grows with them to grow evenly between those timed (trapezoids)."""
        halves = [(a + b) / 2 for a, b in pairwise(self.epochs)]
        return fmean(halves or self.epochs)

    def task(self, epochs: int) -> float:
        """Of so many epochs and the task's end, where GPM finds its bases, EWC its Fisher and OGD its gradients."""
        return epochs * self.epoch + self.finish


def keep(root: Path, target: Path) -> int:
    """Copies what was measured for safe keeping; gives of how many benchmarks."""
    found = {path.stem: content for path in (root / FOLDER).glob("*.json") if (content := read_json(path)) is not None}
    for benchmark, content in found.items():
        save(target, benchmark, content)
    return len(found)


def save(root: Path, benchmark: str, content: Mapping[str, Any]) -> None:
    path = root / FOLDER / f"{benchmark}.json"
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content)


def load(roots: Sequence[Path], benchmark: str) -> tuple[dict[str, Timing], str]:
    """What the first of these folders has of a benchmark, and the device it was measured on."""
    for root in roots:
        path = root / FOLDER / f"{benchmark}.json"
        content = read_json(path)
        if content is not None:
            try:
                timings = {name: _timing(one) for name, one in content["methods"].items()}
                return timings, str(content["environment"]["device"])
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise damaged(path, error) from error
    return {}, ""


def _timing(content: dict[str, Any]) -> Timing:
    return Timing(content["digest"], tuple(map(float, content["epochs"])), float(content["finish"]))


def relative(row: Row, timings: Mapping[str, Timing]) -> tuple[float | None, float | None]:
    """A row's training time in GPM's, and the paper's in its GPM's; None where either is missing.

    Ours is of a task with as many epochs as the recipe allows: when a stopping rule cuts them short says nothing of speed.
    """
    ours, own = of_row(row, timings), recipe(row.benchmark).paper.get(REFERENCE)
    gpm = resolve(row.benchmark, REFERENCE)
    reference = _with(gpm, timings)
    return (
        ours.task(row.settings.training["epochs"]) / reference.task(gpm.training["epochs"])
        if ours and reference
        else None,
        row.paper.seconds / own.seconds if row.paper.seconds and own and own.seconds else None,
    )


def of_row(row: Row, timings: Mapping[str, Timing]) -> Timing | None:
    """What was timed with the row's own settings."""
    return _with(row.settings, timings) if row.runnable else None


def _with(settings: Settings, timings: Mapping[str, Timing]) -> Timing | None:
    found = timings.get(settings.method)
    return found if found and found.digest == settings.digest else None


def rows_of(rows: Sequence[Row], roots: Sequence[Path]) -> list[dict[str, str]]:
    """Table 2 as text cells."""
    timed = {benchmark: load(roots, benchmark) for benchmark in dict.fromkeys(row.benchmark for row in rows)}
    lines = []
    for row in rows:
        timings, device = timed[row.benchmark]
        found = of_row(row, timings)
        ours, paper = relative(row, timings)
        lines.append(
            {
                "benchmark": row.benchmark,
                "method": row.method,
                "s an epoch": f"{found.epoch:.3g}" if found else NOT_RUN,
                "s a task's end": f"{found.finish:.3g}" if found else SILENT,
                "relative to gpm": SILENT if ours is None else f"{ours:.2f}",
                "paper's": SILENT if paper is None else f"{paper:.2f}",
                "device": device if found else SILENT,
            }
        )
    return lines
