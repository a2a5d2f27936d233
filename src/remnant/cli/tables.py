"""Prints tables on a terminal."""

import re
from collections.abc import Callable, Mapping, Sequence
from math import isnan

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from remnant.evaluation import AccuracyMatrix
from remnant.report import Column, Grid, cell_text, number

from .app import out, print_text

Style = Callable[[str], str]  # the colour of a cell


def print_grid(grid: Grid, style: Style = lambda text: "") -> None:
    """Prints a table. On a narrow terminal text wraps, but numbers and the first column are never cut short."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    rows = [[cell_text(cell) for cell in row] for row in grid.rows]
    for place, column in enumerate(grid.columns):
        whole = max(cell_len(text) for text in (column.heading, *(row[place] for row in rows)))
        wraps = column.text and place > 0
        table.add_column(column.heading, justify="left" if column.text else "right", min_width=None if wraps else whole)
    for row in rows:
        table.add_row(*(Text(text, style(text)) for text in row))
    least, most = table.__rich_measure__(out, out.options.update(max_width=10_000))
    width = out.width if least <= out.width else most
    if grid.title:
        print_text(grid.title, style="italic")
    Console(file=out.file, width=width, force_terminal=out.is_terminal, highlight=False).print(table)


def print_rows(
    title: str, rows: Sequence[Mapping[str, str]], text: Sequence[str] = (), style: Style = lambda text: ""
) -> None:
    """Prints rows of cells by heading, without empty columns. `text` names the columns to align to the left.

    The heading `acc (paper)` is printed as `paper`: the column `acc` is beside it.
    """
    names = [name for name in (rows[0] if rows else ()) if any(row[name] for row in rows)]
    columns = [Column(re.sub(r".* \((paper|difference)\)", r"\1", name), text=name in text) for name in names]
    print_grid(Grid("", title, tuple(columns), tuple(tuple(row[name] for name in names) for row in rows)), style)


def print_accuracies(matrix: AccuracyMatrix, title: str) -> None:
    """Prints R in per cent, a row for each task learnt. Rows that were not measured are left out."""
    columns = (Column("after", text=True), *(Column(str(task + 1)) for task in range(matrix.tasks)))
    rows = []
    for t, row in enumerate(matrix.values):
        cells = [number(None if isnan(value) else 100 * value, 1, otherwise="") for value in row]
        if any(cells):
            rows.append((str(t + 1), *cells))
    print_grid(Grid("", title, columns, tuple(rows)), _accuracy_colour)


def _accuracy_colour(text: str) -> str:
    if "." not in text:  # the number of a task
        return ""
    return "green" if float(text) >= 90 else "yellow" if float(text) >= 60 else "red"
