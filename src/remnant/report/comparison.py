"""Compares methods on the same stream: mean ± sd over seeds, and how far each is from the best, with an interval."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isnan
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from remnant.errors import UserError, did_you_mean
from remnant.evaluation import Spread, average_forgetting
from remnant.experiments.settings import recipe

from .names import BOUNDS
from .records import Reading, RunRecord, read_runs
from .statistics import paired, welch
from .variants import NAMES, Variant, collect, flatten

BEST, CANNOT_SAY = "*", "?"
NO_DIFFERENCE = 1e-9  # accuracies are sums of fractions, which round
BySeed = Mapping[int, float | None]  # the values of a measure


@dataclass(frozen=True)
class Measure:
    """A number that runs are compared by, and how to print it. `better` is 1 if more is better, −1 if less, 0 if unranked."""

    heading: str
    of: Callable[[RunRecord], float | None]
    better: int = 0
    scale: float = 1.0
    places: int = 3

    def text(self, value: Spread, sign: str = "-") -> str:
        mean, sd = (None if part is None else self.scale * part for part in (value.mean, value.sd))
        return Spread(mean, sd).text(self.places, sign)


def _forgetting(run: RunRecord) -> float | None:
    if run.matrix is None or not run.learned or isnan(value := average_forgetting(run.matrix)):
        return None
    return value


# Wall-clock times are not ranked, because runs may have shared their device.
MEASURES = {
    "acc": Measure("ACC %", attrgetter("result.acc"), 1, 100.0, 2),
    "bwt": Measure("BWT", attrgetter("result.bwt"), 1),
    "forgetting": Measure("forgetting", _forgetting, -1),
    "learning_accuracy": Measure("learning acc. %", attrgetter("result.learning_accuracy"), 1, 100.0, 2),
    "seconds": Measure("time s", lambda run: sum(run.result.seconds.values()) if run.result else None, places=1),
    "memory_bytes": Measure("memory kB", attrgetter("result.memory_bytes"), scale=1e-3, places=0),
}


class Estimate(NamedTuple):
    """A measure over the seeds of one variant, and its difference from the best one's."""

    value: Spread
    mark: str = ""  # BEST: the best, or not told apart from it; CANNOT_SAY: there is no interval
    difference: float | None = None
    interval: tuple[float, float] | None = None
    paired: bool = False


@dataclass(frozen=True)
class Row:
    """One method with one set of settings. A bound shows what can be reached, and does not compete."""

    variant: Variant
    settings: tuple[str, ...]  # how they differ from the recipe's, except in the stream
    estimates: Mapping[str, Estimate]

    @property
    def bound(self) -> bool:
        return self.variant.method in BOUNDS


@dataclass(frozen=True)
class Comparison:
    """All methods that learned the same stream, the best first and bounds last."""

    benchmark: str
    stream: tuple[str, ...]  # how it differs from the recipe's
    rows: tuple[Row, ...]

    @property
    def shared(self) -> tuple[str, ...]:
        """The changes to the recipe that all rows have in common, if there are several."""
        first, *others = (row.settings for row in self.rows)
        return tuple(change for change in first if others and all(change in other for other in others))

    @property
    def title(self) -> str:
        changes = ", ".join([*self.stream, *self.shared])
        return f"{self.benchmark} ({changes})" if changes else self.benchmark

    def label(self, row: Row) -> str:
        """The changes of a row that are not in the title."""
        return ", ".join(change for change in row.settings if change not in self.shared)


class Compared(NamedTuple):
    """A comparison for each stream, and what was read."""

    comparisons: tuple[Comparison, ...]
    reading: Reading


def compare_runs(roots: Sequence[Path], benchmark: str | None = None) -> Compared:
    """Compares all finished runs below some folders.

    Args:
        roots: Folders with run folders in them, or run folders. If two hold the same settings and seed, the first counts.
        benchmark: Only this benchmark.

    Raises:
        UserError: A folder is missing, or no finished run was found.
    """
    reading = read_runs(roots)
    variants = [variant for variant in collect(reading).variants if variant.runs]
    found = {variant.benchmark for variant in variants}
    where = ", ".join(map(str, roots))
    if not found and reading.damaged:
        path, problem = next(iter(reading.damaged))
        raise UserError(
            f"{where} contains no run that can be compared. {path}: {problem} remnant clean removes damaged runs."
        )
    if not found:
        raise UserError(f"{where} contains no finished run to compare. remnant resume continues unfinished ones.")
    if benchmark is not None and benchmark not in found:
        raise UserError(f"{where} contains no finished run of '{benchmark}'. {did_you_mean(benchmark, found)}")
    chosen = [variant for variant in variants if benchmark in (None, variant.benchmark)]
    return Compared(tuple(comparisons(chosen)), reading)


def comparisons(variants: Sequence[Variant]) -> Iterator[Comparison]:
    """One comparison for each stream. A variant without a finished run has no figures, and comes last."""
    streams = [(variant.benchmark, stream_changes(variant)) for variant in variants]
    order = list(dict.fromkeys(variant.benchmark for variant in variants))
    pairs = sorted(zip(streams, variants, strict=True), key=lambda pair: (order.index(pair[0][0]), pair[0][1]))
    for (benchmark, stream), group in groupby(pairs, key=lambda pair: pair[0]):
        yield Comparison(benchmark, stream, tuple(_rows([variant for _, variant in group])))


def stream_changes(variant: Variant) -> tuple[str, ...]:
    """How the stream differs from the recipe's. Accuracies on different streams do not compare."""
    return tuple(change for change in _unlike_the_recipe(variant) if change.startswith("stream."))


def _unlike_the_recipe(variant: Variant) -> list[str]:
    """The settings that differ from the recipe. For a method from a file, its defaults count too: only the file knows them."""
    try:
        usual = dict(flatten(recipe(variant.benchmark).values(variant.method)))
    except UserError:  # a benchmark of another release
        usual = {}
    own = {key: value for key, value in flatten(variant.settings) if key not in NAMES}
    return [f"{key}={value}" for key, value in own.items() if usual.get(key) != value]


def _rows(variants: Sequence[Variant]) -> list[Row]:
    columns = [_estimates(measure, variants) for measure in MEASURES.values()]
    estimates = [dict(zip(MEASURES, each, strict=True)) for each in zip(*columns, strict=True)]
    rows = [Row(variant, _changes(variant), own) for variant, own in zip(variants, estimates, strict=True)]
    return sorted(rows, key=lambda row: (not row.variant.runs, row.bound, -(row.estimates["acc"].value.mean or 0.0)))


def _changes(variant: Variant) -> tuple[str, ...]:
    changes = _unlike_the_recipe(variant) if variant.changes is None else variant.changes
    return tuple(change for change in changes if not change.startswith("stream."))


def _estimates(measure: Measure, variants: Sequence[Variant]) -> list[Estimate]:
    """One estimate for each variant. The best is the contender with the best mean among those with several seeds.

    One lucky seed must not be the best: nothing could be told apart from it.
    """
    values = [{run.seed: measure.of(run) for run in variant.runs} for variant in variants]
    spreads = [Spread.of(list(each.values())) for each in values]
    contenders = [i for i, v in enumerate(variants) if v.method not in BOUNDS and spreads[i].mean is not None]
    if not measure.better or len(contenders) < 2:
        return [Estimate(spread) for spread in spreads]
    best = max(contenders, key=lambda i: (spreads[i].sd is not None, measure.better * (spreads[i].mean or 0.0)))
    return [_estimate(own, values[best], ranked=i in contenders) for i, own in enumerate(values)]


def _estimate(own: BySeed, best: BySeed, *, ranked: bool) -> Estimate:
    """The spread of a variant's seeds, and its difference from the best: seed by seed if both ran the same seeds."""
    value, other = Spread.of(list(own.values())), Spread.of(list(best.values()))
    if own is best:
        return Estimate(value, BEST)
    if value.mean is None or other.mean is None:
        return Estimate(value)
    same = own.keys() == best.keys()
    interval = paired([(own[seed] or 0.0) - (best[seed] or 0.0) for seed in own]) if same else welch(value, other)
    mark = CANNOT_SAY if interval is None else BEST * (interval[0] <= NO_DIFFERENCE and interval[1] >= -NO_DIFFERENCE)
    return Estimate(value, mark * ranked, value.mean - other.mean, interval, same and interval is not None)
