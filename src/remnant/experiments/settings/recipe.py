"""Recipes: the settings of every method on a benchmark, and the paper's numbers, read from the package's TOML files."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from remnant.data import BENCHMARKS
from remnant.errors import did_you_mean
from remnant.options import OptionError, checked
from remnant.registry import is_file_reference

FALLBACK = "default"  # the recipe of streams that have none of their own
PROTOCOLS = ("paper", "sane")
FOLDER = files("remnant.experiments.settings.recipes")
SECTIONS = ("stream", "network", "training", "optimizer")


@dataclass(frozen=True)
class PaperResult:
    """The paper's numbers in its own units: ACC and capacity in per cent, BWT as a fraction; None if it gives none."""

    acc: float | None = None
    acc_sd: float | None = None
    bwt: float | None = None
    bwt_sd: float | None = None
    seconds: float | None = None
    capacity: float | None = None

    @classmethod
    def read(cls, numbers: Mapping[str, Any], where: str) -> PaperResult:
        """Reads a table of numbers; `where` names the table in error messages."""
        return cls(**checked(cls, numbers, where))


@dataclass(frozen=True)
class Recipe:
    """One benchmark's settings under one protocol. Recipes are shared: copy their dictionaries before changing them.

    Args:
        methods: each method's options.
        differing: the sections in which a method differs from the others, `[methods.NAME.training]` in the file.
        without: methods that make no sense on this benchmark, each with the reason.
    """

    benchmark: str
    file: str
    stream: dict[str, Any]
    network: dict[str, Any]
    training: dict[str, Any]
    methods: dict[str, dict[str, Any]]
    optimizer: dict[str, Any] = field(default_factory=dict)
    paper: dict[str, PaperResult] = field(default_factory=dict)
    differing: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    without: dict[str, str] = field(default_factory=dict)

    def section(self, name: str, method: str) -> dict[str, Any]:
        """Returns the stream, network, training or optimizer section of a method, or its `options`."""
        if name == "options":
            return self.methods.get(method, {})
        shared, own = getattr(self, name), self.differing.get(method, {}).get(name, {})
        another = "name" in own and own["name"] != shared.get("name")  # the shared options describe a different one
        return dict(own) if another else {**shared, **own}


def recipe_names() -> list[str]:
    """Returns the names of all benchmarks that have a recipe."""
    names = (entry.name.removesuffix(".toml") for entry in FOLDER.iterdir() if entry.name.endswith(".toml"))
    return sorted(name for name in names if name != FALLBACK)


@cache
def recipe(benchmark: str, protocol: str = "paper") -> Recipe:
    """Returns the recipe of a benchmark.

    Args:
        benchmark: a benchmark's name. Streams from a file or an installed package share the recipe `default.toml`.
        protocol: "paper", or "sane" with the changes that the recipe lists under `[sane]`.

    Raises:
        OptionError: if there is no such benchmark or protocol.
    """
    if protocol not in PROTOCOLS:
        raise OptionError(f"No protocol '{protocol}'. It can be {' or '.join(PROTOCOLS)}.")
    if benchmark in recipe_names():
        return _read(benchmark, benchmark, protocol)
    if benchmark.endswith(".py"):
        raise OptionError(f"{benchmark}: which stream in it? Write {benchmark}:NAME, a Stream or a function there.")
    if not is_file_reference(benchmark) and benchmark not in BENCHMARKS:
        raise OptionError(f"No benchmark called '{benchmark}'. {did_you_mean(benchmark, BENCHMARKS)}")
    return default_recipe(benchmark)


def default_recipe(benchmark: str = "your_file.py:stream") -> Recipe:
    """Returns the recipe of streams that have none of their own; both protocols are the same."""
    return _read(FALLBACK, benchmark, "paper")


def _read(name: str, benchmark: str, protocol: str) -> Recipe:
    file = f"{name}.toml"
    content = tomllib.loads((FOLDER / file).read_text(encoding="utf-8"))
    changes = content.pop("sane", {})
    if protocol == "sane":
        content = _changed(content, changes)
    paper = {m: PaperResult.read(numbers, f"{file}, paper.{m}") for m, numbers in content.pop("paper", {}).items()}
    differing = {
        method: {section: options.pop(section) for section in SECTIONS if section in options}
        for method, options in content["methods"].items()
    }
    return Recipe(benchmark, file, **content, paper=paper, differing=differing)


def _changed(content: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merges `changes` into `content`. A changed setting is replaced whole, also if it is a table."""
    sections = {name: {**content.get(name, {}), **changes.get(name, {})} for name in SECTIONS}
    methods = {name: {**own, **changes.get("methods", {}).get(name, {})} for name, own in content["methods"].items()}
    return {**content, **sections, "methods": methods}
