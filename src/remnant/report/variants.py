"""Groups runs: a `Variant` is one method on one benchmark with one set of settings, over its seeds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any

import torch

from remnant.data import BUILT_IN
from remnant.errors import UserError
from remnant.evaluation import Spread
from remnant.experiments.settings import Settings, resolve
from remnant.memory import GPM
from remnant.models import build
from remnant.registry import is_file_reference

from .names import slug, sort_benchmarks, sort_methods, title_of
from .records import Reading, RunRecord


def _over_seeds(figure: str, scale: float = 1.0) -> cached_property[Spread]:
    """A property: the mean and deviation of a result over seeds; empty if any seed lacks it."""
    return cached_property(lambda variant: Spread.of([getattr(run.result, figure) for run in variant.runs], scale))


@dataclass(frozen=True)
class Variant:
    """Runs that differ only in their seed.

    `changes` lists the differences from the recipe as `--set` would write them; None means that there is no recipe.
    """

    benchmark: str
    method: str
    digest: str
    runs: tuple[RunRecord, ...]  # finished
    unfinished: tuple[RunRecord, ...]
    changes: tuple[str, ...] | None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.benchmark, self.method, self.digest

    @property
    def slug(self) -> str:
        return slug(*self.key)

    @property
    def anchor(self) -> str:
        """The HTML id of the method's details. Variants of a method share them."""
        return f"run-{slug(self.benchmark, self.method)}"

    @property
    def title(self) -> str:
        return title_of(self.method, self.benchmark)

    @property
    def as_in_recipe(self) -> bool:
        return self.changes == ()

    @property
    def label(self) -> str:
        """The differences from the recipe, in words."""
        if self.changes is None:
            return f"settings {self.digest}"
        return ", ".join(self.changes) or "as in the recipe"

    @property
    def all_runs(self) -> tuple[RunRecord, ...]:
        return (*self.runs, *self.unfinished)

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.all_runs[0].settings

    acc = _over_seeds("acc", 100)  # in per cent
    bwt = _over_seeds("bwt")
    learning_accuracy = _over_seeds("learning_accuracy", 100)  # in per cent
    memory_bytes = _over_seeds("memory_bytes")

    def mean_matrix(self) -> list[list[float | None]] | None:
        """R[t, i] in per cent, as the mean over seeds; None if there is no R, or if seeds differ in the number of tasks."""
        matrices = [run.matrix.values for run in self.runs if run.matrix is not None]
        if not matrices or len({matrix.shape for matrix in matrices}) > 1:
            return None
        tasks = range(len(matrices[0]))
        return [[Spread.of([float(m[t, i]) for m in matrices], 100).mean for i in tasks] for t in tasks]

    @cached_property
    def mean_ranks(self) -> dict[str, list[Spread]]:
        """Directions that GPM added per layer and task, over all seeds that recorded them; empty if their layers differ."""
        recorded = [run.ranks for run in self.runs if run.ranks]
        shapes = [{layer: len(added) for layer, added in ranks.items()} for ranks in recorded]
        if not recorded or any(shape != shapes[0] for shape in shapes):
            return {}
        return {
            layer: [Spread.of([float(ranks[layer][task]) for ranks in recorded]) for task in range(tasks)]
            for layer, tasks in shapes[0].items()
        }

    @cached_property
    def capacities(self) -> dict[str, int]:
        """The capacity n of each layer that GPM would protect, in the order of the network; empty for a user's stream."""
        stream = BUILT_IN.get(self.benchmark)
        network = dict(self.settings.get("network", {}))
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

    @property
    def gpm_max_bytes(self) -> int:
        """The size of a memory that holds every direction of every layer: GPM_max = Σ n² (appendix, "GPM Size")."""
        return sum(n * n for n in self.capacities.values()) * torch.float32.itemsize

    @property
    def devices(self) -> list[str]:
        return sorted({str(run.environment.get("device", "unknown")) for run in self.runs})

    @property
    def threshold(self) -> float | None:
        """ε if it is one number, or ε of the first task."""
        threshold = self.settings.get("options", {}).get("threshold")
        value = threshold.get("start", threshold.get("value")) if isinstance(threshold, dict) else threshold
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    @property
    def settings_but_threshold(self) -> str:
        """Equal for two variants that differ in ε only."""
        options = self.settings.get("options", {})
        threshold = options.get("threshold")
        entries = threshold.items() if isinstance(threshold, dict) else ()
        rest = {key: value for key, value in entries if key not in ("start", "value")}
        return repr(sorted(flatten({**self.settings, "options": {**options, "threshold": rest}})))


@dataclass(frozen=True)
class Collection:
    """All variants, ordered by benchmark, method and digest."""

    variants: tuple[Variant, ...]
    reading: Reading

    def of(self, benchmark: str, method: str | None = None) -> list[Variant]:
        return [v for v in self.variants if v.benchmark == benchmark and method in (None, v.method)]

    def main(self, benchmark: str, method: str) -> Variant | None:
        """The variant to show where there is room for one: the recipe's, else the one with the most seeds."""
        found = self.of(benchmark, method)
        return min(found, key=lambda v: (not v.runs, not v.as_in_recipe, -len(v.runs), v.digest), default=None)

    def mains(self, benchmark: str) -> dict[str, Variant]:
        """The main variant of every method with finished runs, in the order of the report."""
        chosen = {method: self.main(benchmark, method) for method in self.methods_on(benchmark)}
        return {method: variant for method, variant in chosen.items() if variant is not None and variant.runs}

    @property
    def benchmarks(self) -> list[str]:
        return sort_benchmarks(v.benchmark for v in self.variants)

    @property
    def methods(self) -> list[str]:
        return sort_methods(v.method for v in self.variants)

    def methods_on(self, benchmark: str) -> list[str]:
        return sort_methods(v.method for v in self.of(benchmark))

    def by_method(self) -> Iterator[list[Variant]]:
        """All variants of a method on a benchmark, the recipe's first; for each method and benchmark."""
        for benchmark in self.benchmarks:
            for method in self.methods_on(benchmark):
                yield sorted(self.of(benchmark, method), key=lambda v: not v.as_in_recipe)


def collect(reading: Reading) -> Collection:
    variants = []
    for key, group in groupby(reading.runs, attrgetter("benchmark", "method", "digest")):  # by which they are sorted
        runs = list(group)
        finished = tuple(run for run in runs if run.result)
        unfinished = tuple(run for run in runs if not run.result)
        variants.append(Variant(*key, finished, unfinished, changes(runs[0].settings)))
    return Collection(tuple(variants), reading)


def changes(settings: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The `--set` (and --protocol) that lead from the recipe to these settings; None if there is no recipe."""
    protocol = settings.get("protocol", "paper")
    if is_file_reference(str(settings.get("method"))):
        return None  # a report never runs a user's file, which the defaults of its method would need
    try:
        recipe = resolve(settings["benchmark"], settings["method"], (), protocol).as_dict()
        Settings.from_dict(settings)
    except (UserError, KeyError, TypeError, ValueError, AttributeError):
        return None
    changed = sorted(_differences(recipe, settings), key=lambda change: change.startswith("no "))
    return (*[f"{protocol} protocol"] * (protocol != "paper"), *changed)


def _differences(recipe: Mapping[str, Any], own: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yields `key=value` for new and changed settings, and `no key` for removed ones."""
    for key in sorted({*recipe, *own}):
        old, new = recipe.get(key), own.get(key)
        if key not in own:
            # A threshold in another form replaces the recipe's as a whole, so there is no need to list what it removes.
            if not (prefix == "threshold." and not own.keys() & recipe.keys()):
                yield f"no {prefix}{key}"
        elif isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, _section(prefix, key))
        elif old != new:
            yield from (f"{path}={value}" for path, value in flatten({key: new}, prefix))


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields each key and value as `--set` takes them."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from flatten(value, _section(prefix, key))
        else:
            yield f"{prefix}{key}", str(value).lower() if isinstance(value, bool) else str(value)


def _section(prefix: str, key: str) -> str:
    """The start of the keys in a section. On the command line, the method's options have no section."""
    return "" if (prefix, key) == ("", "options") else f"{prefix}{key}."
