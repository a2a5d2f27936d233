"""Runs that differ in nothing but their seed, together; runs of other settings, apart and named by what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .changes import changes, flat
from .records import Measured, Reading, Run
from .spread import Spread


@dataclass(frozen=True)
class Variant:
    """One method on one benchmark with one set of settings, over its seeds."""

    benchmark: str
    method: str
    digest: str
    runs: tuple[Run, ...]  # finished
    unfinished: tuple[Run, ...]
    changes: tuple[str, ...] | None  # against the recipe; none of them: as in the recipe; None: there is no recipe

    @property
    def key(self) -> tuple[str, str, str]:
        return self.benchmark, self.method, self.digest

    @property
    def as_in_recipe(self) -> bool:
        return self.changes == ()

    @property
    def label(self) -> str:
        """What sets it apart from the recipe, in words."""
        if self.changes is None:
            return f"settings {self.digest}"
        return ", ".join(self.changes) or "as in the recipe"

    @property
    def settings(self) -> Mapping[str, Any]:
        return (self.runs or self.unfinished)[0].settings

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]

    def spread(self, figure: Callable[[Measured], float | None]) -> Spread:
        """Mean and sd over seeds; nothing where any of them lacks the figure."""
        return Spread.of([figure(run.measured) for run in self.runs if run.measured])

    @cached_property
    def acc(self) -> Spread:
        """In per cent."""
        return self.spread(lambda m: 100 * m.acc)

    @cached_property
    def bwt(self) -> Spread:
        return self.spread(lambda m: m.bwt)

    @cached_property
    def learning_accuracy(self) -> Spread:
        """In per cent."""
        return self.spread(lambda m: None if m.learning_accuracy is None else 100 * m.learning_accuracy)

    @cached_property
    def seconds(self) -> Spread:
        return self.spread(lambda m: sum(m.seconds.values()))

    @cached_property
    def memory_bytes(self) -> Spread:
        return self.spread(lambda m: m.memory_bytes)

    @property
    def devices(self) -> list[str]:
        return sorted({str(run.environment.get("device", "unknown")) for run in self.runs})

    @property
    def threshold(self) -> float | None:
        """ε, where one number gives it: the value, or that of the first task."""
        threshold = self._options.get("threshold")
        value = threshold.get("start", threshold.get("value")) if isinstance(threshold, dict) else threshold
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    @property
    def _options(self) -> Mapping[str, Any]:
        options = self.settings.get("options")
        return options if isinstance(options, dict) else {}

    @property
    def but_for_threshold(self) -> str:
        """The same for two variants that differ in nothing but ε."""
        threshold = self._options.get("threshold")
        rest = {key: value for key, value in threshold.items() if key != "start"} if isinstance(threshold, dict) else {}
        if rest.keys() == {"value"}:
            rest = {}
        return repr(sorted(flat({**self.settings, "options": {**self._options, "threshold": rest}})))


@dataclass(frozen=True)
class Collection:
    """All variants, in the order of benchmark, method and digest."""

    variants: tuple[Variant, ...]
    reading: Reading

    def of(self, benchmark: str, method: str | None = None) -> list[Variant]:
        return [v for v in self.variants if v.benchmark == benchmark and method in (None, v.method)]

    def main(self, benchmark: str, method: str) -> Variant | None:
        """The variant to show where there is room for one: the recipe's; without it, the one with the most seeds."""
        found = self.of(benchmark, method)
        return min(found, key=lambda v: (not v.runs, not v.as_in_recipe, -len(v.runs), v.digest), default=None)

    def mains(self, benchmark: str) -> list[Variant]:
        """One variant of each method that has finished runs."""
        methods = dict.fromkeys(v.method for v in self.of(benchmark))
        chosen = (self.main(benchmark, method) for method in methods)
        return [variant for variant in chosen if variant is not None and variant.runs]

    @property
    def benchmarks(self) -> list[str]:
        return list(dict.fromkeys(v.benchmark for v in self.variants))

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(v.method for v in self.variants))

    def several_settings(self) -> Iterator[list[Variant]]:
        """Names under which there is more than one set of settings."""
        for benchmark in self.benchmarks:
            for method in dict.fromkeys(v.method for v in self.of(benchmark)):
                if len(found := self.of(benchmark, method)) > 1:
                    yield found


def collect(reading: Reading) -> Collection:
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in reading.runs:
        groups.setdefault((run.benchmark, run.method, run.digest), []).append(run)
    return Collection(tuple(_variant(*key, runs) for key, runs in sorted(groups.items())), reading)


def _variant(benchmark: str, method: str, digest: str, runs: Iterable[Run]) -> Variant:
    ordered = sorted(runs, key=lambda run: run.seed)
    done = tuple(run for run in ordered if run.measured)
    rest = tuple(run for run in ordered if not run.measured)
    return Variant(benchmark, method, digest, done, rest, changes(ordered[0].settings))
