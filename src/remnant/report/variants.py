"""Groups runs: a `Variant` is one method on one benchmark with one set of settings, over its seeds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from shlex import quote
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from remnant.data import BUILT_IN
from remnant.errors import UserError
from remnant.evaluation import Spread
from remnant.experiments.settings import Settings, resolve
from remnant.memory import GPM
from remnant.models import build
from remnant.registry import IN_FILE

from .names import in_order, slug, title_of
from .records import Reading, RunRecord

NAMES = ("benchmark", "method", "protocol")  # settings that are shown by name, not as a change


def _over_seeds(name: str, scale: float = 1.0) -> cached_property[Spread]:
    """Makes a property: the mean and deviation of a result over seeds; empty if any seed lacks it."""
    return cached_property(lambda variant: Spread.of([getattr(run.result, name) for run in variant.runs], scale))


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
    def id(self) -> str:
        """Its name in the address of the page."""
        return "/".join(self.key)

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
    bwt_points = _over_seeds("bwt", 100)
    learning_accuracy = _over_seeds("learning_accuracy", 100)  # in per cent
    memory_bytes = _over_seeds("memory_bytes")

    @cached_property
    def ranks(self) -> dict[str, NDArray[np.int64]]:
        """Directions that GPM added, seeds × tasks for each layer; empty if seeds differ in their layers or tasks."""
        recorded = [run.ranks for run in self.runs if run.ranks]
        shapes = [{layer: len(added) for layer, added in ranks.items()} for ranks in recorded]
        if not recorded or any(shape != shapes[0] for shape in shapes):
            return {}
        return {layer: np.array([ranks[layer] for ranks in recorded]) for layer in shapes[0]}

    @cached_property
    def capacities(self) -> dict[str, int]:
        """The capacity n of each layer that GPM would protect, in the order of the network; empty for a user's stream."""
        stream = BUILT_IN.get(self.benchmark)
        network = dict(self.settings.get("network", {}))
        if stream is None or "name" not in network:
            return {}
        single = stream.head == "single"
        try:
            with torch.random.fork_rng(devices=[]):  # only shapes are needed: random weights leave no trace
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

    def command(self, seeds: Sequence[int]) -> str:
        """The command that runs these settings with these seeds, or with five; empty if no recipe leads to them.

        A method in a file is given every setting: finding out which of them its defaults are would run the file.
        """
        changed = self.changes
        if changed is None and IN_FILE in self.method:
            own = [f"{key}={value}" for key, value in flatten(self.settings) if key not in NAMES]
            changed = (*["sane protocol"] * (self.settings.get("protocol") == "sane"), *own)
        if changed is None or any(change.startswith("no ") for change in changed):
            return ""
        words = ["remnant run", quote(self.benchmark), quote(self.method)]
        words += ["--protocol sane" if change == "sane protocol" else f"--set {quote(change)}" for change in changed]
        comma = "," if len(seeds) == 1 else ""  # without it, one number is the number of seeds
        return " ".join([*words, f"--seeds {','.join(map(str, seeds or [5]))}{comma}"])


class Collection(NamedTuple):
    """All variants, in the order of the report: by benchmark and method, the recipe's settings first."""

    variants: list[Variant]
    benchmarks: list[str]
    methods: list[str]
    reading: Reading

    def of(self, benchmark: str, method: str | None = None) -> list[Variant]:
        return [v for v in self.variants if v.benchmark == benchmark and method in (None, v.method)]

    def main(self, benchmark: str, method: str) -> Variant | None:
        """The variant to show if there is room for only one: the recipe's, or else the one with the most seeds."""
        found = self.of(benchmark, method)
        return min(found, key=lambda v: (not v.runs, not v.as_in_recipe, -len(v.runs), v.digest), default=None)

    def mains(self, benchmark: str) -> dict[str, Variant]:
        """The main variant of every method with finished runs."""
        chosen = {v.method: self.main(benchmark, v.method) for v in self.of(benchmark)}
        return {method: variant for method, variant in chosen.items() if variant is not None and variant.runs}

    def by_method(self) -> list[list[Variant]]:
        """All variants of a method on a benchmark, for each benchmark and method."""
        return [list(group) for _, group in groupby(self.variants, attrgetter("benchmark", "method"))]


def collect(reading: Reading) -> Collection:
    benchmarks = in_order("benchmarks", (run.benchmark for run in reading.runs))
    methods = in_order("methods", (run.method for run in reading.runs))
    variants = []
    for key, group in groupby(reading.runs, attrgetter("benchmark", "method", "digest")):  # by which they are sorted
        runs = list(group)
        finished = tuple(run for run in runs if run.result)
        unfinished = tuple(run for run in runs if not run.result)
        variants.append(Variant(*key, finished, unfinished, changes(runs[0].settings)))
    variants.sort(key=lambda v: (benchmarks.index(v.benchmark), methods.index(v.method), not v.as_in_recipe))
    return Collection(variants, benchmarks, methods, reading)


def changes(settings: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Lists the changes (as --set takes them, or the protocol) from the recipe to these settings; None without a recipe."""
    protocol = settings.get("protocol", "paper")
    if IN_FILE in str(settings.get("method")):
        return None  # the method's defaults are in the user's file, and a report never runs a user's file
    try:
        recipe = dict(flatten(resolve(settings["benchmark"], settings["method"], (), protocol).as_dict()))
        Settings.from_dict(settings)
    except (UserError, KeyError, TypeError, ValueError, AttributeError):
        return None
    own = dict(flatten(settings))
    changed = [f"{key}={value}" for key, value in own.items() if recipe.get(key) != value]
    present, shared = {_section(key) for key in own}, {_section(key) for key in own.keys() & recipe.keys()}
    removed = {key if _section(key) in present else _section(key) for key in recipe.keys() - own.keys()}
    if "threshold" in present - shared:  # a threshold in another form replaces the recipe's as a whole
        removed = {key for key in removed if _section(key) != "threshold"}
    return (*[f"{protocol} protocol"] * (protocol != "paper"), *changed, *(f"no {key}" for key in sorted(removed)))


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields each key and value as `--set` takes them: the method's options have no section there."""
    for key, value in sorted(settings.items()):
        if isinstance(value, dict):
            yield from flatten(value, "" if (prefix, key) == ("", "options") else f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _section(key: str) -> str:
    return key.partition(".")[0]
