"""Everything about one method on one benchmark: seeds, settings, environments, figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan
from shlex import quote
from typing import Any

from .changes import flat_settings
from .figures import Drawing, variant_drawings
from .grid import NOT_FINISHED, SILENT, Cell, Column, Grid, Number
from .matrix import detail_id
from .names import benchmark_title, method_title, ordered_benchmarks, ordered_methods
from .records import Run
from .spread import Spread
from .variants import Collection, Variant


@dataclass(frozen=True)
class VariantDetail:
    label: str
    digest: str
    command: str
    seeds: Grid
    accuracies: Grid | None
    drawings: tuple[Drawing, ...]
    settings: tuple[tuple[str, str, bool], ...]  # key, value, whether it differs from the recipe
    environments: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]  # which seeds; what they ran on
    places: tuple[str, ...]


@dataclass(frozen=True)
class Detail:
    id: str
    title: str
    variants: tuple[VariantDetail, ...]


def make_details(collection: Collection) -> list[Detail]:
    found = []
    for benchmark in ordered_benchmarks(collection.benchmarks):
        for method in ordered_methods(v.method for v in collection.of(benchmark)):
            variants = sorted(collection.of(benchmark, method), key=lambda v: (not v.as_in_recipe, v.digest))
            found.append(
                Detail(
                    detail_id(benchmark, method),
                    f"{method_title(method)} on {benchmark_title(benchmark)}",
                    tuple(_variant(collection, variant) for variant in variants),
                )
            )
    return found


def _variant(collection: Collection, variant: Variant) -> VariantDetail:
    runs = (*variant.runs, *variant.unfinished)
    changed = {change.partition("=")[0] for change in variant.changes or ()}
    return VariantDetail(
        variant.label,
        variant.digest,
        _command(variant),
        _seeds(runs),
        _accuracies(variant),
        tuple(variant_drawings(collection, variant)),
        tuple((key, value, key in changed) for key, value in flat_settings(variant.settings)),
        _environments(runs),
        tuple(run.place for run in runs),
    )


def _command(variant: Variant) -> str:
    """What runs these settings again; empty where no recipe leads to them."""
    if variant.changes is None or any(change.startswith("no ") for change in variant.changes):
        return ""
    words = ["remnant run", quote(variant.benchmark), quote(variant.method)]
    for change in variant.changes:
        words.append("--protocol sane" if change == "sane protocol" else f"--set {quote(change)}")
    return " ".join([*words, f"--seeds {_seed_list(variant.seeds)}"])


def _seed_list(seeds: list[int]) -> str:
    """Which seeds, as `--seeds` takes them: a number without a comma would be how many."""
    return f"{seeds[0]}," if len(seeds) == 1 else ",".join(map(str, seeds)) or "5"


def _seeds(runs: tuple[Run, ...]) -> Grid:
    columns = (
        Column("seed"),
        Column("ACC %"),
        Column("BWT"),
        Column("learning accuracy %"),
        Column("train s"),
        Column("evaluate s"),
        Column("consolidate s"),
        Column("memory kB"),
        Column("state", words=True),
    )
    return Grid("seeds", "Seed by seed", columns, tuple(_seed(run) for run in runs))


def _seed(run: Run) -> tuple[Cell, ...]:
    m = run.measured
    if m is None:
        tasks = f"unfinished: {run.learned} of {run.matrix.tasks} tasks" if run.matrix else "unfinished: no task done"
        return (str(run.seed), *[NOT_FINISHED] * 3, *[SILENT] * 4, tasks)
    parts = [_number(m.seconds.get(part), 1) for part in ("train", "evaluate", "consolidate")]
    kilobytes = None if m.memory_bytes is None else m.memory_bytes / 1000
    la = None if m.learning_accuracy is None else 100 * m.learning_accuracy
    return (
        str(run.seed),
        Number(100 * m.acc),
        _number(m.bwt, 3),
        _number(la, 2),
        *parts,
        _number(kilobytes, 0),
        "finished",
    )


def _number(value: float | None, places: int) -> Cell:
    return SILENT if value is None else Number(value, None, places)


def _accuracies(variant: Variant) -> Grid | None:
    """R as numbers, for those who cannot see the heat map."""
    matrices = [run.matrix.values for run in variant.runs if run.matrix is not None]
    if not matrices or len({matrix.shape for matrix in matrices}) > 1:
        return None
    tasks = range(len(matrices[0]))
    rows = []
    for t in tasks:
        means = [Spread.of([None if isnan(m[t, i]) else 100 * float(m[t, i]) for m in matrices]).mean for i in tasks]
        if any(mean is not None for mean in means):
            rows.append((f"after {t + 1}", *("" if mean is None else Number(mean, None, 1) for mean in means)))
    columns = (Column("%", words=True), *(Column(f"task {i + 1}") for i in tasks))
    return Grid("accuracies", f"Accuracies, mean over {len(matrices)} seed(s)", columns, tuple(rows))


def _environments(runs: tuple[Run, ...]) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """Runs that ran on the same, together."""
    groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for run in runs:
        groups.setdefault(_lines(run.environment), []).append(run.seed)
    return tuple((_seed_words(seeds), lines) for lines, seeds in groups.items())


def _seed_words(seeds: list[int]) -> str:
    return ("seed " if len(seeds) == 1 else "seeds ") + ", ".join(str(seed) for seed in sorted(seeds))


def _lines(environment: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((str(key), "–" if value is None else str(value)) for key, value in environment.items())
