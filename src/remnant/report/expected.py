"""Which methods a reader expects on a benchmark (those of the paper's tables), which of them were not run, and how to."""

from __future__ import annotations

from typing import NamedTuple

from remnant.experiments.paper.tables import load, names
from remnant.experiments.settings.resolve import SettingsError, recipe

from .names import ordered_benchmarks, ordered_methods
from .variants import Collection


class Missing(NamedTuple):
    benchmark: str
    method: str
    command: str  # empty where there is no recipe for it yet


def expected() -> dict[str, list[str]]:
    """Benchmark → methods, of all the paper's tables."""
    found: dict[str, set[str]] = {}
    for name in names():
        for row in load(name).rows:
            found.setdefault(row.benchmark, set()).add(row.method)
    return {benchmark: ordered_methods(found[benchmark]) for benchmark in ordered_benchmarks(found)}


def missing(collection: Collection) -> list[Missing]:
    """What the paper's tables have and no folder has a finished run of."""
    return [
        Missing(benchmark, method, run_command(benchmark, method))
        for benchmark, methods in expected().items()
        for method in methods
        if not any(variant.runs for variant in collection.of(benchmark, method))
    ]


def run_command(benchmark: str, method: str) -> str:
    return f"remnant run {benchmark} {method} --seeds 5" if has_recipe(benchmark, method) else ""


def has_recipe(benchmark: str, method: str) -> bool:
    try:
        return method in recipe(benchmark).methods
    except SettingsError:
        return False
