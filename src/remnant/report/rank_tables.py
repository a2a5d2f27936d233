"""How many directions each layer gained with each task (the appendix's table of k)."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from shlex import quote

from remnant.experiments.runs.paths import folder_name

from .capacity import capacities
from .grid import NOT_RUN, SILENT, Cell, Column, Grid, Number
from .names import benchmark_title, method_title, ordered_benchmarks
from .spread import Spread
from .variants import Collection, Variant


def rank_grids(collection: Collection) -> list[Grid]:
    """One table for each benchmark on which GPM's ranks are known, from us or from the paper."""
    paper = paper_ranks()
    grids = []
    for benchmark in ordered_benchmarks({*paper, *collection.benchmarks}):
        variant = collection.main(benchmark, "gpm")
        if benchmark in paper or (variant is not None and mean_ranks(variant)):
            grids.append(_grid(benchmark, variant, paper.get(benchmark, {})))
    return grids


def paper_ranks() -> dict[str, dict[str, list[int]]]:
    return tomllib.loads((files("remnant.report") / "paper_ranks.toml").read_text(encoding="utf-8"))


def mean_ranks(variant: Variant) -> dict[str, list[Spread]]:
    """Directions added per layer and task, over the seeds that have them; none where seeds disagree on the layers."""
    known = [run.ranks for run in variant.runs if run.ranks]
    shapes = [{layer: len(added) for layer, added in ranks.items()} for ranks in known]
    if not known or any(shape != shapes[0] for shape in shapes):
        return {}
    return {
        layer: [Spread.of([float(ranks[layer][task]) for ranks in known]) for task in range(len(known[0][layer]))]
        for layer in known[0]
    }


def _grid(benchmark: str, variant: Variant | None, paper: dict[str, list[int]]) -> Grid:
    ours = mean_ranks(variant) if variant else {}
    room = capacities(variant) if variant else {}
    totals = _totals(variant)
    tasks = max([*map(len, ours.values()), *map(len, paper.values())])
    rows: list[tuple[Cell, ...]] = []
    for layer in ours or paper:
        n: Cell = Number(room[layer], None, 0) if layer in room else SILENT
        if layer in ours:
            added: list[Cell] = [Number(k.mean, None, 1) for k in ours[layer] if k.mean is not None]
            rows.append((layer, "ours", *_padded(added, tasks), totals[layer], n))
        else:
            rows.append((layer, "ours", *[NOT_RUN] * tasks, NOT_RUN, n))
        if layer in paper:
            theirs: list[Cell] = [Number(k, None, 0) for k in paper[layer]]
            rows.append((layer, "paper", *_padded(theirs, tasks), Number(sum(paper[layer]), None, 0), n))
    seeds = len([run for run in variant.runs if run.ranks]) if variant else 0
    label = "" if variant is None or variant.as_in_recipe else f" ({variant.label})"
    columns = (
        Column("layer", words=True),
        Column("whose", words=True),
        *(Column(f"task {task + 1}") for task in range(tasks)),
        Column("total", spread=True),
        Column("capacity n"),
    )
    return Grid(
        f"ranks-{folder_name(benchmark)}",
        f"Directions added per layer and task: {method_title('gpm')} on {benchmark_title(benchmark)}{label}",
        columns,
        tuple(rows),
        (f"Ours: mean over {seeds} seed(s). The paper's: one seed.",) if paper else (f"Mean over {seeds} seed(s).",),
        f"remnant run {quote(benchmark)} gpm --seeds 5 && remnant keep",
    )


def _totals(variant: Variant | None) -> dict[str, Cell]:
    known = [run.ranks for run in variant.runs if run.ranks] if variant else []
    layers = known[0] if known else {}
    found: dict[str, Cell] = {}
    for layer in layers:
        total = Spread.of([float(sum(ranks.get(layer, ()))) for ranks in known])
        found[layer] = Number(total.mean or 0.0, total.sd, 1)
    return found


def _padded(cells: list[Cell], length: int) -> list[Cell]:
    return [*cells, *[SILENT] * (length - len(cells))]
