"""The paper's tables beside our results, tables of GPM's ranks, and one table of all runs.

A new column of the paper's tables is an entry of `QUANTITIES` and a name in tables.toml, both in `experiments.paper`.
"""

from collections.abc import Sequence
from dataclasses import replace
from shlex import quote

from remnant.evaluation import NO_VALUE, Spread
from remnant.experiments.paper import NOT_RUN, QUANTITIES, FilledRow, Results, Table, fill, relative_to_gpm

from .grid import Cell, Column, Grid, number
from .names import TEXTS, benchmark_title, in_order, method_title, paper_table, read_toml, slug, title_of
from .statistics import verdict
from .variants import Collection, Variant

PAPER_RANKS: dict[str, dict[str, list[int]]] = read_toml("paper.toml")["ranks"]
FRONTIER = ("successors", "ablations", "fair", "related")  # tables that the paper does not have
NOT_FINISHED, NOT_TIMED = "not finished", "not timed"
NAME_COLUMNS = tuple(Column(heading, text=True) for heading in ("benchmark", "method", "variant"))


def all_grids(collection: Collection) -> list[Grid]:
    """Every table of the report, in the paper's order; the table of all runs comes last."""
    results = {v.key: {run.seed: run.result for run in v.runs if run.result} for v in collection.variants}
    first, second = paper_table("table1a"), paper_table("table1b")
    tables = [first, second, paper_table("table3"), _one_and_five_epochs(first)]
    tables += map(paper_table, ("class-incremental", *FRONTIER))
    grids = [_paper_grid(collection, table, results) for table in tables]
    grids.insert(2, _training_time(collection, [*fill(first, results), *fill(second, results)]))
    for benchmark in in_order("benchmarks", [*PAPER_RANKS, *collection.benchmarks]):
        variant = collection.main(benchmark, "gpm")
        if benchmark in PAPER_RANKS or (variant and variant.ranks):
            grids.append(_ranks(benchmark, variant))
    return [*grids, _everything(collection)]


def _one_and_five_epochs(five: Table) -> Table:
    """The appendix's table of a single epoch, with the rows of five epochs added method by method."""
    one = paper_table("single-epoch")
    rows = [*one.rows, *(replace(row, variant="5 epochs") for row in five.rows)]
    order = [row.method for row in one.rows]
    rows.sort(key=lambda row: (order.index(row.method), row.variant))
    return replace(one, title="Appendix: permuted MNIST in a single epoch and in five", rows=tuple(rows))


def _paper_grid(collection: Collection, table: Table, results: Results) -> Grid:
    columns, names = list(NAME_COLUMNS), [name for name in table.columns if QUANTITIES[name].heading]
    for heading in (QUANTITIES[name].heading for name in names):
        columns += [Column(whose, heading, spread=True) for whose in ("ours", "paper")]
        columns += [Column("difference", heading), Column("mark", heading, text=True)]
    filled = fill(table, results)
    rows = tuple(_cells(each, names) for each in filled)
    command = f"remnant reproduce {table.name} && remnant keep"
    remarks = _other_settings(collection, filled)
    return Grid(table.name, table.title, (*columns, Column("seeds")), rows, remarks, command).without_empty_columns()


def _cells(filled: FilledRow, names: Sequence[str]) -> tuple[Cell, ...]:
    cells: list[Cell] = []
    for name in names:
        quantity, ours, paper = QUANTITIES[name], filled.ours[name], filled.paper[name]
        cells += [
            number(ours, quantity.places, otherwise=NO_VALUE if filled.seeds else NOT_RUN),
            number(paper, quantity.paper_places),
            number(filled.difference(name), quantity.places, "+"),
            verdict(name, ours, paper),
        ]
    return (*_titles(filled), *cells, str(len(filled.seeds) or NO_VALUE))


def _titles(filled: FilledRow) -> tuple[str, str, str]:
    return benchmark_title(filled.row.benchmark), method_title(filled.row.method), filled.row.variant


def _other_settings(collection: Collection, filled: Sequence[FilledRow]) -> tuple[str, ...]:
    """Remarks on methods whose row says "not run" although they ran, with settings that are not the table's."""
    shown = {each.row.key for each in filled if each.seeds}
    rows = dict.fromkeys((each.row.benchmark, each.row.method) for each in filled if not each.seeds)
    return tuple(
        f"{title_of(method, benchmark)} was run with other settings, which do not belong here: "
        f"{'; '.join(v.label for v in others)}."
        for benchmark, method in rows
        if (others := [v for v in collection.of(benchmark, method) if v.runs and v.key not in shown])
    )


def _training_time(collection: Collection, filled: Sequence[FilledRow]) -> Grid:
    columns = (*NAME_COLUMNS, Column("ours", "seconds", spread=True), Column("paper", "seconds"))
    columns += (Column("ours", "relative to GPM"), Column("paper", "relative to GPM"))
    columns += (Column("our device", text=True), Column("seeds"))
    devices = {variant.key: ", ".join(variant.devices) for variant in collection.variants}
    rows: list[tuple[Cell, ...]] = []
    for each in filled:
        if each.seeds or each.paper["seconds"].mean is not None:
            seconds = number(each.ours["seconds"], 0, otherwise=NO_VALUE if each.seeds else NOT_RUN)
            theirs = number(each.paper["seconds"].mean, 0)
            timings, _ = collection.reading.times.get(each.row.benchmark, ({}, ""))
            ratio, paper_ratio = relative_to_gpm(each.row, timings)
            relative = number(ratio, otherwise=NOT_TIMED), number(paper_ratio)
            device = devices[each.row.key] if each.seeds else NO_VALUE
            rows.append((*_titles(each), seconds, theirs, *relative, device, str(len(each.seeds) or NO_VALUE)))
    command = "remnant reproduce table1a && remnant reproduce table1b && remnant reproduce table2 && remnant keep"
    remarks = tuple(TEXTS["times"]["table"])
    return Grid(
        "training-time", "Table 2: training time", columns, tuple(rows), remarks, command
    ).without_empty_columns()


def _ranks(benchmark: str, variant: Variant | None) -> Grid:
    """The directions that GPM added per layer and task, ours and the paper's (the appendix's table of k)."""
    ours, paper = variant.ranks if variant else {}, PAPER_RANKS.get(benchmark, {})
    seeds = max(map(len, ours.values()), default=0)
    tasks = max([*(added.shape[1] for added in ours.values()), *map(len, paper.values())])
    rows: list[tuple[Cell, ...]] = []
    for layer in ours or paper:
        capacity = number(variant.capacities.get(layer) if variant else None, 0)
        cells: list[Cell] = [NOT_RUN] * (tasks + 1)
        if layer in ours:
            added = [number(k, 1) for k in ours[layer].mean(axis=0).tolist()]
            total = number(Spread.of(ours[layer].sum(axis=1).tolist()), 1)
            cells = [*added, *[NO_VALUE] * (tasks - len(added)), total]
        rows.append((layer, "ours", *cells, capacity))
        if layer in paper:
            added = [number(k, 0) for k in paper[layer]]
            cells = [*added, *[NO_VALUE] * (tasks - len(added)), number(sum(paper[layer]), 0)]
            rows.append((layer, "paper", *cells, capacity))
    label = "" if variant is None or variant.as_in_recipe else f" ({variant.label})"
    columns = [Column("layer", text=True), Column("whose", text=True), *(Column(f"task {t + 1}") for t in range(tasks))]
    return Grid(
        f"ranks-{slug(benchmark)}",
        f"Directions added per layer and task: {title_of('gpm', benchmark)}{label}",
        (*columns, Column("total", spread=True), Column("capacity n")),
        tuple(rows),
        (f"Ours: mean over seeds ({seeds}). The paper's: one seed.",) if paper else (f"Mean over seeds ({seeds}).",),
        f"remnant run {quote(benchmark)} gpm --seeds 5 && remnant keep",
    )


def _everything(collection: Collection) -> Grid:
    """A row for each set of settings that was run, whether or not the paper's tables have it."""
    columns = [Column(heading, text=True) for heading in ("benchmark", "method", "settings")]
    columns += [Column(heading, spread=True) for heading in ("ACC %", "BWT", "learning accuracy %")]
    columns += [Column("seeds"), Column("device", text=True), Column("digest", text=True)]
    rows: list[tuple[Cell, ...]] = []
    for group in collection.by_method():
        for v in sorted(group, key=lambda v: (not v.as_in_recipe, v.label)):
            absent = NO_VALUE if v.runs else NOT_FINISHED
            spreads = ((v.acc, 2), (v.bwt, 3), (v.learning_accuracy, 2))
            figures = [number(value, places, otherwise=absent) for value, places in spreads]
            seeds = str(len(v.runs)) + (f" + {len(v.unfinished)} unfinished" if v.unfinished else "")
            names = benchmark_title(v.benchmark), method_title(v.method), v.label
            rows.append((*names, *figures, seeds, ", ".join(v.devices) or NO_VALUE, v.digest))
    remark = "Learning accuracy: the mean accuracy on each task just after it was learnt."
    return Grid("everything", "Everything that was run", tuple(columns), tuple(rows), (remark,))
