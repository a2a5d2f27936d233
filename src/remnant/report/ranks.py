"""Ranks of GPM's bases: directions added per layer and task, and the capacity n of each layer."""

from collections.abc import Sequence
from shlex import quote

import torch

from remnant.data import BUILT_IN
from remnant.evaluation import Spread
from remnant.memory import GPM
from remnant.models import build

from .grid import NO_VALUE, NOT_RUN, Cell, Column, Grid, number
from .names import ordered_benchmarks, read_toml, slug, title_of
from .variants import Collection, Variant

PAPER_RANKS: dict[str, dict[str, list[int]]] = read_toml("paper.toml")["ranks"]
BYTES = 4  # of one entry of a basis, in float32


def rank_grids(collection: Collection) -> list[Grid]:
    """A table for each benchmark for which we or the paper have GPM's ranks (the appendix's table of k)."""
    grids = []
    for benchmark in ordered_benchmarks({*PAPER_RANKS, *collection.benchmarks}):
        variant = collection.main(benchmark, "gpm")
        if benchmark in PAPER_RANKS or (variant is not None and mean_ranks(variant)):
            grids.append(_grid(benchmark, variant, PAPER_RANKS.get(benchmark, {})))
    return grids


def mean_ranks(variant: Variant) -> dict[str, list[Spread]]:
    """Directions added per layer and task, over all seeds that recorded them; empty if their layers differ."""
    recorded = [run.ranks for run in variant.runs if run.ranks]
    shapes = [{layer: len(added) for layer, added in ranks.items()} for ranks in recorded]
    if not recorded or any(shape != shapes[0] for shape in shapes):
        return {}
    return {
        layer: [Spread.of([float(ranks[layer][task]) for ranks in recorded]) for task in range(tasks)]
        for layer, tasks in shapes[0].items()
    }


def _grid(benchmark: str, variant: Variant | None, paper: dict[str, list[int]]) -> Grid:
    ours = mean_ranks(variant) if variant else {}
    capacity = capacities(variant) if variant else {}
    recorded = [run.ranks for run in variant.runs if run.ranks] if variant else []
    tasks = max([*map(len, ours.values()), *map(len, paper.values())])
    rows: list[tuple[Cell, ...]] = []
    for layer in ours or paper:
        n = number(capacity.get(layer), 0)
        if layer in ours:
            added = _padded([number(k.mean, 1) for k in ours[layer]], tasks)
            total = number(Spread.of([float(sum(ranks[layer])) for ranks in recorded]), 1)
            rows.append((layer, "ours", *added, total, n))
        else:
            rows.append((layer, "ours", *[NOT_RUN] * tasks, NOT_RUN, n))
        if layer in paper:
            theirs = _padded([number(k, 0) for k in paper[layer]], tasks)
            rows.append((layer, "paper", *theirs, number(sum(paper[layer]), 0), n))
    label = "" if variant is None or variant.as_in_recipe else f" ({variant.label})"
    columns = [Column("layer", text=True), Column("whose", text=True)]
    columns += [Column(f"task {task + 1}") for task in range(tasks)]
    seeds = len(recorded)
    return Grid(
        f"ranks-{slug(benchmark)}",
        f"Directions added per layer and task: {title_of('gpm', benchmark)}{label}",
        (*columns, Column("total", spread=True), Column("capacity n")),
        tuple(rows),
        (f"Ours: mean over {seeds} seed(s). The paper's: one seed.",) if paper else (f"Mean over {seeds} seed(s).",),
        f"remnant run {quote(benchmark)} gpm --seeds 5 && remnant keep",
    )


def _padded(cells: Sequence[Cell], length: int) -> list[Cell]:
    return [*cells, *[NO_VALUE] * (length - len(cells))]


def capacities(variant: Variant) -> dict[str, int]:
    """The capacity n of each protected layer, in the order in which they run; empty for a stream we do not know."""
    stream = BUILT_IN.get(variant.benchmark)
    network = dict(variant.settings.get("network", {}))
    if stream is None or "name" not in network:
        return {}
    single = stream.head == "single"
    try:
        with torch.device("meta"):  # only shapes are needed, no weights
            classes = 2 if single else [2]
            model = build(network.pop("name"), input_shape=stream.input_shape, classes=classes, **network)
            memory = GPM(model, 0.5, exclude=[] if single else ["heads.*"])
    except (ValueError, TypeError):
        return {}
    return {layer.name: layer.capacity for layer in memory.report().layers}


def gpm_max_bytes(variant: Variant) -> int | None:
    """The size of a memory that holds every direction of every layer: GPM_max = Σ n² (appendix, "GPM Size")."""
    return sum(n * n for n in capacities(variant).values()) * BYTES or None
