"""Method × benchmark: one cell for what was measured, linked to its runs; what was not run says so."""

from __future__ import annotations

from dataclasses import dataclass

from remnant.experiments.runs.paths import folder_name

from .expected import expected, has_recipe
from .grid import NOT_RUN, SILENT, Number
from .names import BOUNDS, benchmark_title, method_title, ordered_benchmarks, ordered_methods
from .variants import Collection


@dataclass(frozen=True)
class MatrixCell:
    text: str
    link: str = ""  # id of the detail it leads to
    bwt: str = ""
    note: str = ""
    best: bool = False
    spoken: str = ""  # the whole cell as a sentence
    kind: str = "run"  # run, unfinished, not-run or none


@dataclass(frozen=True)
class Matrix:
    benchmarks: tuple[tuple[str, str], ...]  # name, title
    rows: tuple[tuple[str, bool, tuple[MatrixCell, ...]], ...]  # title of the method, whether it is a bound, cells


def detail_id(benchmark: str, method: str) -> str:
    return f"run-{folder_name(benchmark)}-{folder_name(method)}"


def make_matrix(collection: Collection) -> Matrix:
    wanted = expected()
    benchmarks = ordered_benchmarks({*wanted, *collection.benchmarks})
    methods = ordered_methods({*collection.methods, *(method for each in wanted.values() for method in each)})
    rows = tuple(
        (method_title(method), method in BOUNDS, tuple(_cell(collection, wanted, b, method) for b in benchmarks))
        for method in methods
    )
    return Matrix(tuple((b, benchmark_title(b)) for b in benchmarks), rows)


def _cell(collection: Collection, wanted: dict[str, list[str]], benchmark: str, method: str) -> MatrixCell:
    variant = collection.main(benchmark, method)
    if variant is None:
        if method in wanted.get(benchmark, ()) or has_recipe(benchmark, method):
            return MatrixCell(NOT_RUN, kind="not-run")
        return MatrixCell(SILENT, kind="none", spoken="not part of any table")
    name = f"{method_title(method)} on {benchmark_title(benchmark)}"
    link = detail_id(benchmark, method)
    if variant.acc.mean is None:
        run = max(variant.unfinished, key=lambda run: run.learned)
        tasks = f"{run.learned} of {run.matrix.tasks} tasks" if run.matrix else "no task done"
        return MatrixCell("unfinished", link, note=tasks, spoken=f"{name}: unfinished, {tasks}", kind="unfinished")
    acc = Number(variant.acc.mean, variant.acc.sd).text
    bwt = "" if variant.bwt.mean is None else Number(variant.bwt.mean, variant.bwt.sd, 3).text
    others = len(collection.of(benchmark, method)) - 1
    notes = [f"{len(variant.runs)} seeds" if len(variant.runs) > 1 else "one seed"]
    notes += [f"{len(variant.unfinished)} unfinished"] * bool(variant.unfinished)
    notes += [] if variant.as_in_recipe else [variant.label]
    notes += [f"{others} more with other settings"] * bool(others)
    best = _best(collection, benchmark) == method
    spoken = f"{name}: ACC {acc} per cent" + (f", BWT {bwt}" if bwt else "") + f", {', '.join(notes)}"
    return MatrixCell(acc, link, bwt, ", ".join(notes), best, spoken + (", the best here" if best else ""))


def _best(collection: Collection, benchmark: str) -> str:
    rivals = [v for v in collection.mains(benchmark) if v.method not in BOUNDS]
    return max(rivals, key=lambda v: v.acc.mean or 0.0).method if len(rivals) > 1 else ""
