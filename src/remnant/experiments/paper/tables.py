"""The paper's tables: what to run for each, and ours beside the paper's."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from math import isnan
from statistics import fmean, stdev
from typing import Any, NamedTuple

from remnant.data.errors import did_you_mean

from ..settings.resolve import PaperResult, Settings, SettingsError, recipe, resolve

FIGURES = ("acc", "bwt", "seconds", "capacity")
NOT_RUN, SILENT = "not run", "–"

ResultKey = tuple[str, str, str]  # benchmark, method, digest of the settings


class Result(NamedTuple):
    """One finished run: fractions, NaN or None for what is not defined (BWT of multitask)."""

    seed: int
    acc: float
    bwt: float | None = None
    seconds: float | None = None
    capacity: float | None = None  # of the network at the end, as a fraction of the network it began with


@dataclass(frozen=True)
class Row:
    """One line of a table: a method on a benchmark."""

    benchmark: str
    method: str
    overrides: tuple[str, ...]
    paper: PaperResult
    variant: str = ""  # what sets it apart from another row of the same method

    @property
    def runnable(self) -> bool:
        """Whether the method has its recipe entry; a paper's method may still wait for one."""
        return self.method in recipe(self.benchmark).methods

    @cached_property
    def settings(self) -> Settings:
        return resolve(self.benchmark, self.method, self.overrides)

    @property
    def key(self) -> ResultKey:
        """Where the row's results are found."""
        return self.benchmark, self.method, self.settings.digest


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    columns: tuple[str, ...]  # of FIGURES
    rows: tuple[Row, ...]

    def to_run(self, methods: Sequence[str] | None = None) -> list[Row]:
        """The rows one can run, of these methods or of all."""
        in_table = {row.method for row in self.rows if row.runnable}
        for method in methods or ():
            if method not in in_table:
                raise SettingsError(f"{self.name} runs no method '{method}'. {did_you_mean(method, in_table)}")
        return [row for row in self.rows if row.runnable and (not methods or row.method in methods)]


class Figure(NamedTuple):
    """A mean and its standard deviation (of a sample: it needs two seeds), in the paper's units; None: not known."""

    mean: float | None = None
    sd: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Ours beside the paper's, as numbers. `seeds` is empty where nothing was run."""

    row: Row
    seeds: tuple[int, ...]
    ours: Mapping[str, Figure]
    paper: Mapping[str, Figure]

    def difference(self, figure: str) -> float | None:
        """Ours less the paper's; None where either is missing."""
        ours, paper = self.ours[figure].mean, self.paper[figure].mean
        return None if ours is None or paper is None else ours - paper


def names() -> list[str]:
    return list(_tables())


def load(name: str) -> Table:
    tables = _tables()
    if name not in tables:
        raise SettingsError(f"No table called '{name}'. {did_you_mean(name, tables)}")
    content = tables[name]
    rows = [row for group in content["rows"] for row in _rows(name, group)]
    return Table(name, content["title"], tuple(content["columns"]), tuple(rows))


def compare(table: Table, results: Mapping[ResultKey, Sequence[Result]]) -> list[Comparison]:
    """Every row of the table with what was measured for it."""
    return [_compare(row, results.get(row.key, ()) if row.runnable else ()) for row in table.rows]


def render(table: Table, results: Mapping[ResultKey, Sequence[Result]]) -> list[dict[str, str]]:
    """The table as text cells, for any printer. For each of its columns: ours, the paper's and, but for seconds (measured
    on other machines), the difference. ACC and capacity in per cent."""
    lines = []
    for found in compare(table, results):
        row = found.row
        line = {
            "benchmark": row.benchmark,
            "method": row.method,
            "variant": row.variant,
            "seeds": str(len(found.seeds)),
        }
        for column in table.columns:
            line[column] = cell(column, found.ours[column]) if found.seeds else NOT_RUN
            line[f"{column} (paper)"] = cell(column, found.paper[column], of_paper=True)
            if column != "seconds":
                line[f"{column} (difference)"] = _signed(column, found.difference(column))
        lines.append(line)
    return lines


def _tables() -> dict[str, Any]:
    return tomllib.loads((files("remnant.experiments.paper") / "tables.toml").read_text(encoding="utf-8"))


def _rows(table: str, group: Mapping[str, Any]) -> list[Row]:
    own = group.get("paper")
    if own is None:
        paper = recipe(group["benchmark"]).paper
    else:
        paper = {method: PaperResult.read(numbers, f"tables.toml, {table}") for method, numbers in own.items()}
    return [
        Row(
            group["benchmark"],
            method,
            tuple(group.get("overrides", ())),
            paper.get(method, PaperResult()),
            group.get("variant", ""),
        )
        for method in group["methods"]
    ]


def _compare(row: Row, results: Sequence[Result]) -> Comparison:
    by_seed = {result.seed: result for result in results}  # a seed counts once, however often it was run
    runs = [by_seed[seed] for seed in sorted(by_seed)]
    ours = {figure: measured([getattr(run, figure) for run in runs], _scale(figure)) for figure in FIGURES}
    paper = {figure: Figure(getattr(row.paper, figure), getattr(row.paper, f"{figure}_sd", None)) for figure in FIGURES}
    return Comparison(row, tuple(sorted(by_seed)), ours, paper)


def _scale(figure: str) -> float:
    """The paper gives ACC and capacity in per cent, BWT as a fraction."""
    return 100.0 if figure in ("acc", "capacity") else 1.0


def measured(values: Sequence[float | None], scale: float) -> Figure:
    """A mean over all the runs or none: one over fewer than the row says would mislead."""
    defined = [scale * value for value in values if value is not None and not isnan(value)]
    if not defined or len(defined) < len(values):
        return Figure()
    return Figure(fmean(defined), stdev(defined) if len(defined) > 1 else None)


def cell(column: str, figure: Figure, *, of_paper: bool = False) -> str:
    if figure.mean is None:
        return SILENT
    places = _places(column, of_paper)
    mean = _number(figure.mean, places)
    return mean if figure.sd is None else f"{mean} ± {_number(figure.sd, places)}"


def _signed(column: str, difference: float | None) -> str:
    return SILENT if difference is None else _number(difference, _places(column, of_paper=False), sign="+")


def _places(column: str, of_paper: bool) -> int:
    """Digits after the point: the paper's own, and one more for our BWT, which the paper rounds to nothing."""
    return {"acc": 2, "bwt": 2 if of_paper else 3}.get(column, 0)


def _number(value: float, places: int, sign: str = "-") -> str:
    """Rounded, and never a negative zero."""
    return f"{round(value, places) + 0.0:{sign}.{places}f}"
