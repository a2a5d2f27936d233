"""Every figure of the report: which there are, from what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..expected import expected, run_command
from ..names import benchmark_title, method_title, ordered_benchmarks
from ..variants import Collection, Variant
from .curves import metric_curves, sequence_curve
from .drawing import Absent, Drawing, digest_of
from .epoch_time import epoch_times
from .first_task import first_task
from .heat_map import heat_map
from .memory import memory
from .rank_growth import rank_growth
from .sweep import sweep_drawings, sweeps
from .trade_off import trade_off

__all__ = ["Absent", "Drawing", "Section", "digest_of", "sections", "variant_drawings"]

SWEEP = "remnant sweep split-cifar100 gpm --over threshold.start=0.90,0.95,0.97,0.99"


@dataclass(frozen=True)
class Section:
    """Figures of one kind, one a benchmark, and those that nothing can be drawn in yet."""

    name: str
    title: str
    intro: str
    drawings: tuple[Drawing, ...]
    absent: tuple[Absent, ...]


def sections(collection: Collection) -> list[Section]:
    def each(draw: Callable[[Collection, str], Drawing | None]) -> list[Drawing]:
        drawn = (draw(collection, benchmark) for benchmark in ordered_benchmarks(collection.benchmarks))
        return [drawing for drawing in drawn if drawing is not None]

    ordered = ordered_benchmarks(collection.benchmarks)
    timed = ordered_benchmarks({*ordered, *collection.reading.times})
    times = [drawing for benchmark in timed for drawing in epoch_times(collection, benchmark)]
    return [
        Section(
            "first-task",
            "Task 1 over the sequence",
            "What is left of the first task as others follow. Bands: one standard deviation over seeds.",
            tuple(each(first_task)),
            _absent(collection, "first-task"),
        ),
        Section(
            "trade-off",
            "Learning against keeping",
            "Stability and plasticity: backward transfer (up: forgets less) against the accuracy of each task when just "
            "learnt (right: learns better). Bars: one standard deviation over seeds.",
            tuple(each(trade_off)),
            _absent(collection, "trade-off"),
        ),
        Section(
            "ranks",
            "How full the memory gets",
            "Rank of each layer's subspace against its capacity, as tasks are added.",
            tuple(d for v in _mains(collection, ordered) if (d := rank_growth(v))),
            _absent(collection, "ranks", ("gpm",)),
        ),
        Section(
            "memory",
            "Memory",
            "What a method keeps from one task to the next, the network itself aside. GPM_max holds every direction of every "
            "layer. Our GPM keeps a basis or its complement, whichever is smaller; the paper's shares count bases. "
            "Bytes as they are kept (OWM's projectors are float64), those of GPM_max in float32.",
            tuple(each(memory)),
            _absent(collection, "memory"),
        ),
        Section(
            "epoch-time",
            "Time of an epoch",
            "Relative to the slowest method on the same device.",
            tuple(times),
            () if times else (_time_absent(),),
        ),
        Section(
            "interference",
            "Interference and the threshold ε",
            "ΔW·x: how far the activations of task 1 moved by the end, layer by layer; and ACC and BWT, as ε rises.",
            tuple(d for sweep in sweeps(collection) for d in sweep_drawings(sweep)),
            () if sweeps(collection) else (_sweep_absent(),),
        ),
    ]


def variant_drawings(collection: Collection, variant: Variant) -> list[Drawing]:
    """The figures of one method's runs with one set of settings."""
    found = [heat_map(variant, collection), sequence_curve(variant), rank_growth(variant), *metric_curves(variant)]
    return [drawing for drawing in found if drawing is not None]


def _mains(collection: Collection, benchmarks: list[str]) -> list[Variant]:
    return [variant for benchmark in benchmarks for variant in collection.mains(benchmark)]


def _absent(collection: Collection, name: str, methods: tuple[str, ...] = ()) -> tuple[Absent, ...]:
    """One line a benchmark for methods of the paper's tables that are not in the figures."""
    found = []
    for benchmark, wanted in expected().items():
        gone = [m for m in wanted if m in (methods or wanted) and not any(v.runs for v in collection.of(benchmark, m))]
        if gone:
            words = ", ".join(method_title(method) for method in gone)
            commands = [command for method in gone if (command := run_command(benchmark, method))]
            found.append(Absent(f"{name}-{benchmark}", benchmark_title(benchmark), words, "\n".join(commands)))
    return tuple(found)


def _time_absent() -> Absent:
    return Absent("epoch-time", "Every benchmark", "no two methods on one device", "remnant reproduce table2")


def _sweep_absent() -> Absent:
    return Absent("interference", "10-split CIFAR-100", "no two runs that differ in ε alone", SWEEP)
