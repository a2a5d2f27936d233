"""Every figure of the report, in sections."""

from collections.abc import Callable
from typing import NamedTuple

from ..names import benchmark_title, expected_methods, method_title, run_command, sort_benchmarks
from ..variants import Collection
from .drawing import Drawing, digest_of
from .methods import epoch_times, first_task, memory, trade_off
from .sweep import sweep_drawings
from .variant import rank_growth, variant_drawings

__all__ = ["Absent", "Drawing", "Section", "digest_of", "make_sections", "variant_drawings"]

SWEEP = "remnant sweep split-cifar100 gpm --over threshold.start=0.90,0.95,0.97,0.99"


class Absent(NamedTuple):
    """A figure without data, why there is none, and the command that would give some."""

    title: str
    why: str
    command: str


class Section(NamedTuple):
    """Figures of one kind, and those that are absent. Its title and introduction are in the page's template."""

    name: str
    drawings: list[Drawing]
    absent: list[Absent]


def make_sections(collection: Collection) -> list[Section]:
    """All figures that compare methods or thresholds, in the order of the page."""

    def each(draw: Callable[[Collection, str], Drawing | None]) -> list[Drawing]:
        return [drawing for benchmark in collection.benchmarks if (drawing := draw(collection, benchmark))]

    absent = _absent(collection)
    mains = [variant for benchmark in collection.benchmarks for variant in collection.mains(benchmark).values()]
    ranks = [drawing for variant in mains if (drawing := rank_growth(variant))]
    timed = sort_benchmarks({*collection.benchmarks, *collection.reading.times})
    times = [drawing for benchmark in timed for drawing in epoch_times(collection, benchmark)]
    interference = sweep_drawings(collection)
    no_times = Absent("Every benchmark", "no two methods on one device", "remnant reproduce table2")
    no_sweep = Absent("10-split CIFAR-100", "no two runs that differ in ε alone", SWEEP)
    return [
        Section("first-task", each(first_task), absent),
        Section("trade-off", each(trade_off), absent),
        Section("ranks", ranks, _absent(collection, only="gpm")),
        Section("memory", each(memory), absent),
        Section("epoch-time", times, [] if times else [no_times]),
        Section("interference", interference, [] if interference else [no_sweep]),
    ]


def _absent(collection: Collection, only: str = "") -> list[Absent]:
    """A line for each benchmark whose figures lack methods of the paper's tables."""
    found = []
    for benchmark, expected in expected_methods().items():
        missing = [m for m in expected if only in ("", m) and m not in collection.mains(benchmark)]
        if missing:
            commands = [command for method in missing if (command := run_command(benchmark, method))]
            found.append(Absent(benchmark_title(benchmark), ", ".join(map(method_title, missing)), "\n".join(commands)))
    return found
