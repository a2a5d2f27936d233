"""`Grid` is a table: headings and cells. Templates print it as HTML, Markdown and LaTeX, and rich on a terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby

from remnant.evaluation import NO_VALUE, Spread
from remnant.experiments.paper import NOT_RUN


@dataclass(frozen=True)
class Number:
    """A mean ± sd, and the number of decimal places to print."""

    value: Spread
    places: int = 2
    sign: str = "-"

    def __str__(self) -> str:
        """The number for people, with a true minus sign."""
        return self.value.text(self.places, self.sign).replace("-", "−")

    @property
    def plain(self) -> tuple[str, str]:
        """The mean and the deviation for programs; the deviation may be empty."""
        sd = self.value.sd
        return Spread(self.value.mean).text(self.places, self.sign), "" if sd is None else Spread(sd).text(self.places)


Cell = Number | str


@dataclass(frozen=True)
class Column:
    """A heading. `group` is a second heading above it, which neighbours share."""

    heading: str
    group: str = ""
    spread: bool = False  # numbers in this column have standard deviations
    text: bool = False  # aligned to the left

    @property
    def full_heading(self) -> str:
        return f"{self.group} {self.heading}".strip()


@dataclass(frozen=True)
class Grid:
    """A table. `command` runs the experiments that are missing in it."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    remarks: tuple[str, ...] = ()
    command: str = ""

    def without_empty_columns(self) -> Grid:
        """Drops empty columns, and the benchmark's column if all rows have the same one: the title names it."""
        kept = [i for i in range(len(self.columns)) if any(row[i] not in ("", NO_VALUE) for row in self.rows)]
        if self.columns[0].heading == "benchmark" and len({row[0] for row in self.rows}) == 1:
            kept.remove(0)
        rows = tuple(tuple(row[i] for i in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[i] for i in kept), rows=rows)

    def without_missing_rows(self) -> Grid:
        return replace(self, rows=tuple(row for row in self.rows if not self.is_missing(row)))

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The headings above headings, and how many columns each spans; empty if there are none."""
        # Columns without a group stay apart, so that each has its own empty cell.
        keys = ((column.group, 0 if column.group else number) for number, column in enumerate(self.columns))
        groups = [(group, len(list(columns))) for (group, _), columns in groupby(keys)]
        return groups if any(group for group, _ in groups) else []

    def is_missing(self, row: tuple[Cell, ...]) -> bool:
        """Whether a row holds nothing of ours: neither a run nor a time."""
        ours = [cell for column, cell in zip(self.columns, row, strict=True) if column.heading == "ours"]
        return NOT_RUN in row and not any(isinstance(cell, Number) for cell in ours)

    @property
    def missing(self) -> bool:
        """Whether the paper alone has numbers for this table."""
        return all(self.is_missing(row) or "paper" in row for row in self.rows)


def number(value: Spread | float | None, places: int = 2, sign: str = "-", *, otherwise: str = NO_VALUE) -> Cell:
    """Makes a cell of a mean ± sd or of a plain number; `otherwise` replaces a missing one."""
    spread = value if isinstance(value, Spread) else Spread(value)
    return otherwise if spread.mean is None else Number(spread, places, sign)


def to_csv(grid: Grid) -> str:
    """Prints numbers as programs read them; means and deviations have separate columns."""
    headings = [(column.full_heading, f"{column.full_heading} sd") for column in grid.columns]
    rows = [[cell.plain if isinstance(cell, Number) else (not_a_formula(cell), "") for cell in r] for r in grid.rows]
    widths = [1 + column.spread for column in grid.columns]
    return csv_text(
        [part for pair, width in zip(row, widths, strict=True) for part in pair[:width]] for row in (headings, *rows)
    )


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def not_a_formula(text: str) -> str:
    """Quotes names that a spreadsheet would run as a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
