"""The paper's tables: the runs of each row, and our results beside the paper's."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from typing import Any, NamedTuple

from remnant.errors import did_you_mean
from remnant.evaluation import Spread
from remnant.options import OptionError

from ..runs import RunResult
from ..settings import PaperResult, Settings, recipe, resolve

TABLES: dict[str, Any] = tomllib.loads((files(__package__) / "tables.toml").read_text(encoding="utf-8"))
ALL = "all"
NOT_RUN = "not run"

ResultKey = tuple[str, str, str]  # benchmark, method, digest of the settings
Results = Mapping[ResultKey, Mapping[int, RunResult]]  # the results of each seed


class Quantity(NamedTuple):
    """A column of the paper's tables: its heading in reports, how to get it from a result, and how to print it."""

    heading: str  # empty for a column that reports leave out
    of: Callable[[RunResult], float | None]
    scale: float
    places: int
    paper_places: int


QUANTITIES = {  # by the names in tables.toml
    "acc": Quantity("ACC %", lambda run: run.acc, 100.0, 2, 2),
    "bwt": Quantity("BWT", lambda run: run.bwt, 1.0, 3, 2),  # the paper prints two digits, which hide most differences
    "seconds": Quantity("", lambda run: sum(run.seconds.values()), 1.0, 0, 0),  # reports have a table of times
    "capacity": Quantity("capacity %", lambda run: run.capacity, 100.0, 0, 0),
    "memory": Quantity("memory, MB", lambda run: run.memory_bytes, 1e-6, 2, 2),
    "validation": Quantity("", lambda run: run.validation_acc, 100.0, 2, 2),
}


@dataclass(frozen=True)
class Row:
    """One line of a table: a method on a benchmark. `variant` tells rows of the same method apart."""

    benchmark: str
    method: str
    overrides: tuple[str, ...]
    paper: PaperResult
    variant: str = ""
    protocol: str = "paper"

    @property
    def runnable(self) -> bool:
        """Whether the benchmark's recipe has the method."""
        return self.method in recipe(self.benchmark).methods

    @cached_property
    def settings(self) -> Settings:
        return resolve(self.benchmark, self.method, self.overrides, self.protocol)

    @property
    def key(self) -> ResultKey:
        return self.benchmark, self.method, self.settings.digest


@dataclass(frozen=True)
class Table:
    """A table of the paper; `columns` are keys of `QUANTITIES`."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class FilledRow:
    """A row with its quantities, ours and the paper's, in the paper's units. `seeds` is empty if nothing was run."""

    row: Row
    seeds: tuple[int, ...]
    ours: Mapping[str, Spread]
    paper: Mapping[str, Spread]

    def difference(self, quantity: str) -> float | None:
        """Our mean minus the paper's; None if either is missing."""
        ours, paper = self.ours[quantity].mean, self.paper[quantity].mean
        return None if ours is None or paper is None else ours - paper


def load_table(name: str) -> Table:
    """One table of the paper; OptionError if there is no such table."""
    if name not in TABLES:
        raise OptionError(f"No table called '{name}'. {did_you_mean(name, [*TABLES, ALL])}")
    content = TABLES[name]
    rows = [row for group in content["rows"] for row in _rows(group)]
    return Table(name, content["title"], tuple(content["columns"]), tuple(rows))


def select_tables(name: str, methods: Sequence[str] = (), benchmarks: Sequence[str] = ()) -> list[Table]:
    """Returns one table, or for `all` those that search no setting, with the rows of these methods and benchmarks if given."""
    names = [each for each in TABLES if not TABLES[each].get("search")] if name == ALL else [name]
    tables = chosen = [load_table(each) for each in names]
    for kind, wanted in (("method", methods), ("benchmark", benchmarks)):
        present = {getattr(row, kind) for table in tables for row in table.rows}
        for each in wanted:
            if each not in present:
                raise OptionError(f"{name} has no {kind} '{each}'. {did_you_mean(each, present)}")
        if wanted:
            chosen = [replace(t, rows=tuple(row for row in t.rows if getattr(row, kind) in wanted)) for t in chosen]
    return [table for table in chosen if table.rows]


def fill(table: Table, results: Results) -> list[FilledRow]:
    """Returns every row of the table with the results of its runs."""
    filled = []
    for row in table.rows:
        found = results.get(row.key, {}) if row.runnable else {}
        runs = [found[seed] for seed in sorted(found)]
        ours = {name: Spread.of([each.of(run) for run in runs], each.scale) for name, each in QUANTITIES.items()}
        paper = {
            name: Spread(getattr(row.paper, name, None), getattr(row.paper, f"{name}_sd", None)) for name in QUANTITIES
        }
        filled.append(FilledRow(row, tuple(sorted(found)), ours, paper))
    return filled


def table_rows(table: Table, results: Results) -> list[dict[str, str]]:
    """Returns the table as text cells: ours, the paper's and, except for seconds on other machines, the difference."""
    lines = []
    for filled in fill(table, results):
        line = {name: getattr(filled.row, name) for name in ("benchmark", "method", "variant")}
        line["seeds"] = str(len(filled.seeds))
        for column in table.columns:
            quantity = QUANTITIES[column]
            line[column] = filled.ours[column].text(quantity.places) if filled.seeds else NOT_RUN
            line[f"{column} (paper)"] = filled.paper[column].text(quantity.paper_places)
            if column != "seconds":
                line[f"{column} (difference)"] = Spread(filled.difference(column)).text(quantity.places, "+")
        lines.append(line)
    return lines


def _rows(group: Mapping[str, Any]) -> list[Row]:
    benchmark, paper = group["benchmark"], recipe(group["benchmark"]).paper
    if "paper" in group:
        paper = {method: PaperResult(**numbers) for method, numbers in group["paper"].items()}
    overrides, variant, lrs = group.get("overrides", []), group.get("variant", ""), group.get("lr", {})
    rows = []
    for name in group["methods"]:
        # A list has rates to try, one row each; a table has the rates that were chosen, by method.
        tried = lrs if isinstance(lrs, list) else [lrs[name]] if name in lrs else [None]
        for lr in tried:
            own = [*overrides, *([] if lr is None else [f"lr={lr}"])]
            title = f"lr {lr}" if isinstance(lrs, list) else variant
            rows.append(
                Row(benchmark, name, tuple(own), paper.get(name, PaperResult()), title, group.get("protocol", "paper"))
            )
    return rows
