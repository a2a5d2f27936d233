"""Results as tables on a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from remnant.evaluation import AccuracyMatrix
from remnant.experiments.runs.folder import RunFolder
from remnant.experiments.settings.resolve import Settings, recipe, resolve


def results(console: Console, settings: Settings, folders: Sequence[RunFolder], *, matrix: bool) -> None:
    """R of the first seed, then ACC and BWT over all of them beside the paper's."""
    done = [folder for folder in folders if folder.finished]
    if matrix and done and (first := done[0].matrix()) is not None:
        accuracies(console, first, f"Accuracy, %, after learning each task (seed {done[0].seed})")
    found = [result for folder in done if (result := folder.result())]
    # The paper's figures are for the paper's settings: beside others they would mislead.
    as_recipe = settings == resolve(settings.benchmark, settings.method, (), settings.protocol)
    paper = recipe(settings.benchmark, settings.protocol).paper.get(settings.method) if as_recipe else None
    acc = _spread([100 * result["acc"] for result in found], "{:.2f}")
    bwt = _spread([result["bwt"] for result in found if result["bwt"] is not None], "{:+.3f}")
    seconds = _spread([sum(result["seconds"].values()) for result in found], "{:.0f}")
    console.print(f"ACC {acc} %   BWT {bwt}   {seconds} s a seed, {len(found)} seed(s)", highlight=False)
    if paper is not None and paper.acc is not None:
        bwt_text = "–" if paper.bwt is None else f"{paper.bwt:+.2f}"
        console.print(f"paper: ACC {paper.acc:.2f} %   BWT {bwt_text}", style="dim", highlight=False)
    if done:
        console.print(f"in {done[0].path.parent}", style="dim", highlight=False, soft_wrap=True, markup=False)


def _spread(values: list[float], form: str) -> str:
    """mean ± sd; the mean alone for one value; a dash for none."""
    values = [value for value in values if value == value]
    if not values:
        return "–"
    mean = form.format(statistics.mean(values))
    return mean if len(values) < 2 else f"{mean} ± {form.format(statistics.stdev(values)).lstrip('+')}"


def accuracies(console: Console, matrix: AccuracyMatrix, title: str) -> None:
    """R, a row for each task learnt; a row that was not measured is left out."""
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    drawn.add_column("after")
    for task in range(matrix.tasks):
        drawn.add_column(str(task + 1), justify="right", no_wrap=True)
    for t, row in enumerate(matrix.values):
        if any(value == value for value in row):
            drawn.add_row(str(t + 1), *(_shaded(value) for value in row))
    _print_whole(console, title, drawn)


def _shaded(value: float) -> str:
    """Green where it is known, red where it is forgotten; the number says it without the colour."""
    if value != value:
        return ""
    colour = "green" if value >= 0.9 else "yellow" if value >= 0.6 else "red"
    return f"[{colour}]{100 * value:.1f}[/{colour}]"


def table(console: Console, name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Ours beside the paper's. A column that says nothing is left out, and no number is ever cut short."""
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    columns = [column for column in (rows[0] if rows else ()) if any(row[column] for row in rows)]
    for column in columns:
        figure, _, of = column.partition(" (")
        heading = {"paper)": "paper", "difference)": "difference"}.get(of, figure)
        left = column in ("benchmark", "method", "variant")
        drawn.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for row in rows:
        drawn.add_row(*(str(row[column]) for column in columns))
    _print_whole(console, name, drawn)


def _print_whole(console: Console, title: str, drawn: Table) -> None:
    """As wide as it must be: a number cut short is worse than a line that the terminal wraps."""
    width = max(console.width, drawn.__rich_measure__(console, console.options.update(max_width=10_000)).maximum)
    console.print(title, style="italic", soft_wrap=True, highlight=False, markup=False)
    Console(file=console.file, width=width, force_terminal=console.is_terminal, highlight=False).print(drawn)
