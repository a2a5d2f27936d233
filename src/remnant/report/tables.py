"""The paper's tables with our figures beside them, and one table of all runs."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from remnant.errors import UserError
from remnant.evaluation import Spread
from remnant.experiments.paper import Comparison, Results, Table, compare, load_table, relative_to_gpm, table_names
from remnant.experiments.settings import recipe

from .grid import NO_VALUE, NOT_FINISHED, NOT_RUN, NOT_TIMED, Cell, Column, Grid, make_grid, number
from .names import benchmark_title, method_title, ordered_benchmarks, ordered_methods, title_of
from .ranks import rank_grids
from .statistics import verdict
from .variants import Collection, Variant

HEADINGS = {"acc": "ACC %", "bwt": "BWT", "capacity": "capacity %"}
PLACES = {"acc": 2, "bwt": 3, "capacity": 0}
PAPER_PLACES = {**PLACES, "bwt": 2}

paper_table = cache(load_table)  # whose rows keep their settings


@cache
def expected_methods() -> dict[str, list[str]]:
    """The methods that the paper's tables have, for each benchmark."""
    found: dict[str, set[str]] = {}
    for name in table_names():
        for row in paper_table(name).rows:
            found.setdefault(row.benchmark, set()).add(row.method)
    return {benchmark: ordered_methods(found[benchmark]) for benchmark in ordered_benchmarks(found)}


def has_recipe(benchmark: str, method: str) -> bool:
    try:
        return method in recipe(benchmark).methods
    except UserError:
        return False


def run_command(benchmark: str, method: str) -> str:
    """The command that runs a method as in its recipe; empty if there is no recipe."""
    return f"remnant run {benchmark} {method} --seeds 5" if has_recipe(benchmark, method) else ""


def all_grids(collection: Collection) -> list[Grid]:
    """Every table of the report, in the paper's order; the table of all runs comes last."""
    results = {v.key: {run.seed: run.result for run in v.runs if run.result} for v in collection.variants}
    first, second = paper_table("table1a"), paper_table("table1b")
    return [
        _comparison(collection, first, results),
        _comparison(collection, second, results),
        _training_time(collection, results, (first, second)),
        _comparison(collection, paper_table("table3"), results, ("acc", "bwt", "capacity")),
        _comparison(collection, _one_and_five_epochs(first), results),
        _comparison(collection, paper_table("class-incremental"), results),
        *rank_grids(collection),
        _everything(collection),
    ]


def _one_and_five_epochs(five: Table) -> Table:
    """The appendix's table of a single epoch, with the rows of five epochs between."""
    one = paper_table("single-epoch")
    rows = [*one.rows, *(replace(row, variant="5 epochs") for row in five.rows)]
    order = [row.method for row in one.rows]
    rows.sort(key=lambda row: (order.index(row.method), row.variant))
    return replace(one, title="Appendix: permuted MNIST in a single epoch and in five", rows=tuple(rows))


def _comparison(
    collection: Collection, table: Table, results: Results, figures: Sequence[str] = ("acc", "bwt")
) -> Grid:
    columns = [Column("benchmark", text=True), Column("method", text=True), Column("variant", text=True)]
    for figure in figures:
        columns += [
            Column("ours", HEADINGS[figure], spread=True),
            Column("paper", HEADINGS[figure], spread=True),
            Column("difference", HEADINGS[figure]),
            Column("mark", HEADINGS[figure], text=True),
        ]
    compared = compare(table, results)
    rows = tuple(_row(found, figures) for found in compared)
    command = f"remnant reproduce {table.name} && remnant keep"
    remarks = _other_settings(collection, compared)
    return Grid(table.name, table.title, (*columns, Column("seeds")), rows, remarks, command).without_empty_columns()


def _row(found: Comparison, figures: Sequence[str]) -> tuple[Cell, ...]:
    row = found.row
    cells: list[Cell] = [benchmark_title(row.benchmark), method_title(row.method), row.variant]
    for figure in figures:
        ours, paper = found.ours[figure], found.paper[figure]
        cells += [
            number(ours, PLACES[figure], otherwise=NO_VALUE if found.seeds else NOT_RUN),
            number(paper, PAPER_PLACES[figure]),
            number(found.difference(figure), PLACES[figure], "+"),
            verdict(figure, ours, paper),
        ]
    return (*cells, _seed_count(found))


def _seed_count(found: Comparison) -> str:
    return str(len(found.seeds)) if found.seeds else NO_VALUE


def _other_settings(collection: Collection, compared: Sequence[Comparison]) -> tuple[str, ...]:
    """Remarks on methods whose row says "not run" although they ran, with settings that are not the table's."""
    shown = {found.row.key for found in compared if found.seeds}
    rows = dict.fromkeys((found.row.benchmark, found.row.method) for found in compared if not found.seeds)
    return tuple(
        f"{title_of(method, benchmark)} was run with other settings, which do not belong here: "
        f"{'; '.join(v.label for v in others)}."
        for benchmark, method in rows
        if (others := [v for v in collection.of(benchmark, method) if v.runs and v.key not in shown])
    )


def _training_time(collection: Collection, results: Results, tables: Sequence[Table]) -> Grid:
    devices = {variant.key: ", ".join(variant.devices) for variant in collection.variants}

    def relative(found: Comparison, whose: int) -> float | None:
        timed = collection.reading.times.get(found.row.benchmark)
        return relative_to_gpm(found.row, timed.methods if timed else {})[whose]

    compared = [found for table in tables for found in compare(table, results)]
    return make_grid(
        "training-time",
        "Table 2: training time",
        [
            (Column("benchmark", text=True), lambda found: benchmark_title(found.row.benchmark)),
            (Column("method", text=True), lambda found: method_title(found.row.method)),
            (Column("variant", text=True), lambda found: found.row.variant),
            (
                Column("ours", "seconds", spread=True),
                lambda found: number(found.ours["seconds"], 0, otherwise=NO_VALUE if found.seeds else NOT_RUN),
            ),
            (Column("paper", "seconds"), lambda found: number(found.paper["seconds"].mean, 0)),
            (Column("ours", "relative to GPM"), lambda found: number(relative(found, 0), otherwise=NOT_TIMED)),
            (Column("paper", "relative to GPM"), lambda found: number(relative(found, 1))),
            (Column("our device", text=True), lambda found: devices[found.row.key] if found.seeds else NO_VALUE),
            (Column("seeds"), _seed_count),
        ],
        [found for found in compared if found.seeds or found.paper["seconds"].mean is not None],
        (
            "Wall-clock seconds of one run: training, evaluation and consolidation. Runs may have shared their device. The "
            "paper's times are of a GTX 1060 (permuted MNIST) and a GTX 1080 Ti (the rest), so they do not compare with ours.",
            "Relative to GPM: the training time of a task with all epochs that the recipe allows, and with the work at its "
            "end. The methods were timed one after another in one process, all in the same way.",
        ),
        "remnant reproduce table1a && remnant reproduce table1b && remnant reproduce table2 && remnant keep",
    ).without_empty_columns()


def _everything(collection: Collection) -> Grid:
    """A row for each set of settings that was run, whether or not the paper's tables have it."""

    def spread(value: Spread, variant: Variant, places: int) -> Cell:
        return number(value, places, otherwise=NO_VALUE if variant.runs else NOT_FINISHED)

    def seeds(variant: Variant) -> str:
        return str(len(variant.runs)) + (f" + {len(variant.unfinished)} unfinished" if variant.unfinished else "")

    found = [v for group in collection.by_method() for v in sorted(group, key=lambda v: (not v.as_in_recipe, v.label))]
    return make_grid(
        "everything",
        "Everything that was run",
        [
            (Column("benchmark", text=True), lambda v: benchmark_title(v.benchmark)),
            (Column("method", text=True), lambda v: method_title(v.method)),
            (Column("settings", text=True), lambda v: v.label),
            (Column("ACC %", spread=True), lambda v: spread(v.acc, v, 2)),
            (Column("BWT", spread=True), lambda v: spread(v.bwt, v, 3)),
            (Column("learning accuracy %", spread=True), lambda v: spread(v.learning_accuracy, v, 2)),
            (Column("seeds"), seeds),
            (Column("device", text=True), lambda v: ", ".join(v.devices) or NO_VALUE),
            (Column("digest", text=True), lambda v: v.digest),
        ],
        found,
        ("Learning accuracy: the mean accuracy on each task just after it was learnt.",),
    )
