"""A table as the report knows it: headings, cells, and nothing about how it is printed."""

from __future__ import annotations

from dataclasses import dataclass

from .spread import Spread

NOT_RUN, SILENT, NOT_FINISHED, NOT_TIMED = "not run", "–", "not finished", "not timed"


@dataclass(frozen=True)
class Number:
    """A mean, maybe with its standard deviation, and how many digits of it mean something."""

    mean: float
    sd: float | None = None
    places: int = 2
    signed: bool = False

    @property
    def text(self) -> str:
        """For people: a true minus, and never a negative zero."""
        mean = rounded(self.mean, self.places, "+" if self.signed else "-").replace("-", "−")
        return mean if self.sd is None else f"{mean} ± {rounded(self.sd, self.places)}"

    @property
    def plain(self) -> tuple[str, str]:
        """For programs: the mean and the deviation, which may be empty."""
        mean = rounded(self.mean, self.places, "+" if self.signed else "-")
        return mean, "" if self.sd is None else rounded(self.sd, self.places)


Cell = Number | str


@dataclass(frozen=True)
class Column:
    heading: str
    group: str = ""  # a heading over this one and its neighbours
    spread: bool = False  # its numbers have standard deviations
    words: bool = False  # read from the left

    @property
    def whole(self) -> str:
        """Both headings in one line."""
        return f"{self.group} {self.heading}".strip()


@dataclass(frozen=True)
class Grid:
    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    remarks: tuple[str, ...] = ()
    command: str = ""  # what runs what is missing in it

    def without_idle_columns(self) -> Grid:
        """A column that is empty in every row says nothing; nor does a benchmark's, where there is one: the title has it."""
        kept = [i for i in range(len(self.columns)) if any(row[i] != "" for row in self.rows)]
        if self.columns[0].heading == "benchmark" and len({row[0] for row in self.rows}) == 1:
            kept.remove(0)
        rows = tuple(tuple(row[i] for i in kept) for row in self.rows)
        return Grid(self.name, self.title, tuple(self.columns[i] for i in kept), rows, self.remarks, self.command)


def cell_text(cell: Cell) -> str:
    return cell.text if isinstance(cell, Number) else cell


def number_or(spread: Spread, places: int, otherwise: str = SILENT, *, signed: bool = False) -> Cell:
    return otherwise if spread.mean is None else Number(spread.mean, spread.sd, places, signed)


def rounded(value: float, places: int, sign: str = "-") -> str:
    return f"{round(value, places) + 0.0:{sign}.{places}f}"
