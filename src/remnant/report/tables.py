"""The paper's tables with ours beside them, and one of everything that was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from remnant.experiments.paper import times
from remnant.experiments.paper.tables import Comparison, Result, ResultKey, Table, compare, load

from .grid import NOT_FINISHED, NOT_RUN, NOT_TIMED, SILENT, Cell, Column, Grid, Number, number_or
from .names import benchmark_title, method_title, ordered_benchmarks, ordered_methods
from .rank_tables import rank_grids
from .spread import Spread
from .variants import Collection
from .verdict import verdict

HEADINGS = {"acc": "ACC %", "bwt": "BWT", "capacity": "capacity %"}
PLACES = {"acc": 2, "bwt": 3, "capacity": 0, "seconds": 0}
PAPER_PLACES = {**PLACES, "bwt": 2}


def all_grids(collection: Collection) -> list[Grid]:
    """Every table of the report, in the paper's order; what was measured altogether comes last."""
    results = measured_results(collection)
    first, second = load("table1a"), load("table1b")
    return [
        _comparison(collection, first, results, ("acc", "bwt")),
        _comparison(collection, second, results, ("acc", "bwt")),
        _training_time(collection, results, (first, second)),
        _comparison(collection, load("table3"), results, ("acc", "bwt", "capacity")),
        _comparison(collection, _both_epochs(first), results, ("acc", "bwt")),
        _comparison(collection, load("class-incremental"), results, ("acc", "bwt")),
        *rank_grids(collection),
        everything(collection),
    ]


def measured_results(collection: Collection) -> dict[ResultKey, list[Result]]:
    """Finished runs as `experiments.tables` takes them."""
    return {
        variant.key: [
            Result(run.seed, m.acc, m.bwt, sum(m.seconds.values()), m.capacity)
            for run in variant.runs
            if (m := run.measured)
        ]
        for variant in collection.variants
    }


def _both_epochs(five: Table) -> Table:
    """One epoch and five, method by method: the appendix's table."""
    one = load("single-epoch")
    rows = [*one.rows, *(replace(row, variant="5 epochs") for row in five.rows)]
    order = [row.method for row in one.rows]
    rows.sort(key=lambda row: (order.index(row.method), row.variant))
    return replace(one, title="Appendix: permuted MNIST in a single epoch and in five", rows=tuple(rows))


def _comparison(
    collection: Collection, table: Table, results: dict[ResultKey, list[Result]], figures: Sequence[str]
) -> Grid:
    columns = [Column("benchmark", words=True), Column("method", words=True), Column("variant", words=True)]
    for figure in figures:
        columns += [
            Column("ours", HEADINGS[figure], spread=True),
            Column("paper", HEADINGS[figure], spread=True),
            Column("difference", HEADINGS[figure]),
            Column("mark", HEADINGS[figure], words=True),
        ]
    compared = compare(table, results)
    rows = tuple(_line(found, figures) for found in compared)
    command = f"remnant reproduce {table.name} && remnant keep"
    remarks = _run_otherwise(collection, compared)
    return Grid(table.name, table.title, (*columns, Column("seeds")), rows, remarks, command).without_idle_columns()


def _run_otherwise(collection: Collection, compared: Sequence[Comparison]) -> tuple[str, ...]:
    """Where a row says "not run" but its method was, with settings that are in no row: those are not the table's."""
    shown = {found.row.key for found in compared if found.seeds}
    rows = dict.fromkeys((found.row.benchmark, found.row.method) for found in compared if not found.seeds)
    return tuple(
        f"{method_title(method)} on {benchmark_title(benchmark)} was run with other settings, which do not belong here: "
        f"{'; '.join(v.label for v in others)}."
        for benchmark, method in rows
        if (others := [v for v in collection.of(benchmark, method) if v.runs and v.key not in shown])
    )


def _line(found: Comparison, figures: Sequence[str]) -> tuple[Cell, ...]:
    row = found.row
    cells: list[Cell] = [benchmark_title(row.benchmark), method_title(row.method), row.variant]
    for figure in figures:
        ours, paper = _spread(found, figure), found.paper[figure]
        difference = found.difference(figure)
        cells += [
            number_or(ours, PLACES[figure], SILENT if found.seeds else NOT_RUN),
            SILENT if paper.mean is None else Number(paper.mean, paper.sd, PAPER_PLACES[figure]),
            SILENT if difference is None else Number(difference, None, PLACES[figure], signed=True),
            verdict(figure, ours, paper),
        ]
    return (*cells, str(len(found.seeds)) if found.seeds else SILENT)


def _spread(found: Comparison, figure: str) -> Spread:
    ours = found.ours[figure]
    return Spread(ours.mean, ours.sd, len(found.seeds))


def _training_time(collection: Collection, results: dict[ResultKey, list[Result]], tables: Sequence[Table]) -> Grid:
    devices = {variant.key: ", ".join(variant.devices) for variant in collection.variants}
    rows: list[tuple[Cell, ...]] = []
    for found in (found for table in tables for found in compare(table, results)):
        paper = found.paper["seconds"].mean
        if paper is None and not found.seeds:
            continue
        timed = collection.reading.times.get(found.row.benchmark)
        relative, paper_relative = times.relative(found.row, timed.methods if timed else {})
        rows.append(
            (
                benchmark_title(found.row.benchmark),
                method_title(found.row.method),
                found.row.variant,
                number_or(_spread(found, "seconds"), 0, SILENT if found.seeds else NOT_RUN),
                SILENT if paper is None else Number(paper, None, 0),
                NOT_TIMED if relative is None else Number(relative, None, 2),
                SILENT if paper_relative is None else Number(paper_relative, None, 2),
                devices[found.row.key] if found.seeds else SILENT,
                str(len(found.seeds)) if found.seeds else SILENT,
            )
        )
    columns = (
        Column("benchmark", words=True),
        Column("method", words=True),
        Column("variant", words=True),
        Column("ours", "seconds", spread=True),
        Column("paper", "seconds"),
        Column("ours", "relative to GPM"),
        Column("paper", "relative to GPM"),
        Column("our device", words=True),
        Column("seeds"),
    )
    remarks = (
        "Wall-clock seconds of one run: training, evaluation and consolidation. Runs may have shared their device with "
        "others. The paper's times are of a GTX 1060 (permuted MNIST) and a GTX 1080 Ti (the rest): nothing to compare "
        "ours with.",
        "Relative to GPM: training time of a task with all the epochs the recipe allows and with what is done at its end, "
        "methods timed one after another in one process and all in the same way, without kernels written for one of them.",
    )
    return Grid(
        "training-time",
        "Table 2: training time",
        columns,
        tuple(rows),
        remarks,
        "remnant reproduce table1a && remnant reproduce table1b && remnant reproduce table2 && remnant keep",
    ).without_idle_columns()


def everything(collection: Collection) -> Grid:
    """Each set of settings that was run, in or out of the paper's tables."""
    rows: list[tuple[Cell, ...]] = []
    for benchmark in ordered_benchmarks(collection.benchmarks):
        for method in ordered_methods(v.method for v in collection.of(benchmark)):
            found = sorted(collection.of(benchmark, method), key=lambda v: (not v.as_in_recipe, v.label))
            for v in found:
                nothing = SILENT if v.runs else NOT_FINISHED
                seeds = str(len(v.runs)) + (f" + {len(v.unfinished)} unfinished" if v.unfinished else "")
                rows.append(
                    (
                        benchmark_title(benchmark),
                        method_title(method),
                        v.label,
                        number_or(v.acc, 2, nothing),
                        number_or(v.bwt, 3, nothing),
                        number_or(v.learning_accuracy, 2, nothing),
                        seeds,
                        ", ".join(v.devices) or SILENT,
                        v.digest,
                    )
                )
    columns = (
        Column("benchmark", words=True),
        Column("method", words=True),
        Column("settings", words=True),
        Column("ACC %", spread=True),
        Column("BWT", spread=True),
        Column("learning accuracy %", spread=True),
        Column("seeds"),
        Column("device", words=True),
        Column("digest", words=True),
    )
    remarks = ("Learning accuracy: of each task just after it was learnt, on average.",)
    return Grid("everything", "Everything that was run", columns, tuple(rows), remarks)
