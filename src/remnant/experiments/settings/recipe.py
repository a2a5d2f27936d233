"""Recipes: the settings of every method on a benchmark, and the paper's numbers, read from the package's TOML files."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any

from remnant.data.errors import did_you_mean

from .types import SettingsError

FALLBACK = "default"  # the recipe of streams that have none of their own
PROTOCOLS = ("paper", "sane")
SECTIONS = ("stream", "network", "training")


@dataclass(frozen=True)
class PaperResult:
    """What the paper reports, in its own units: ACC and capacity in per cent, BWT as a fraction, None where it is silent."""

    acc: float | None = None
    acc_sd: float | None = None
    bwt: float | None = None
    bwt_sd: float | None = None
    seconds: float | None = None
    capacity: float | None = None

    @classmethod
    def read(cls, numbers: Mapping[str, Any], where: str) -> PaperResult:
        known = [field.name for field in fields(cls)]
        for key in numbers:
            if key not in known:
                raise SettingsError(f"{where}: no such figure '{key}'. {did_you_mean(key, known)}")
        return cls(**{key: float(value) for key, value in numbers.items()})


@dataclass(frozen=True)
class Recipe:
    """One benchmark's settings under one protocol. The dictionaries are shared: copy before changing them."""

    benchmark: str
    stream: dict[str, Any]
    network: dict[str, Any]
    training: dict[str, Any]
    methods: dict[str, dict[str, Any]]
    paper: dict[str, PaperResult]
    own: dict[str, dict[str, dict[str, Any]]]  # where a method differs from the rest: [methods.NAME.training]
    without: dict[str, str]  # methods that make no sense here, and why

    @property
    def file(self) -> str:
        """The name of the file it is read from."""
        return f"{FALLBACK if is_own_stream(self.benchmark) else self.benchmark}.toml"

    def section(self, name: str, method: str) -> dict[str, Any]:
        """The stream, network or training of a method."""
        return {**getattr(self, name), **self.own.get(method, {}).get(name, {})}


def recipe_names() -> list[str]:
    """Every benchmark that has a recipe."""
    names = (entry.name.removesuffix(".toml") for entry in _folder().iterdir() if entry.name.endswith(".toml"))
    return sorted(name for name in names if name != FALLBACK)


def is_own_stream(benchmark: str) -> bool:
    """Whether it is a user's stream, `path/to/file.py:name`, and not one of ours."""
    return ".py:" in benchmark


@cache
def recipe(benchmark: str, protocol: str = "paper") -> Recipe:
    """The benchmark's recipe; a user's own stream has the fallback. `sane` applies what the recipe says it changes."""
    if protocol not in PROTOCOLS:
        raise SettingsError(f"No protocol '{protocol}'. It can be {' or '.join(PROTOCOLS)}.")
    if benchmark.endswith(".py"):
        raise SettingsError(f"{benchmark}: which stream in it? Write {benchmark}:NAME, a Stream or a function there.")
    if not is_own_stream(benchmark) and benchmark not in recipe_names():
        raise SettingsError(f"No benchmark called '{benchmark}'. {did_you_mean(benchmark, recipe_names())}")
    return _fallback(benchmark) if is_own_stream(benchmark) else _read(benchmark, benchmark, protocol)


def _fallback(benchmark: str) -> Recipe:
    return _read(FALLBACK, benchmark, "paper")


def _read(file: str, benchmark: str, protocol: str) -> Recipe:
    content = tomllib.loads((_folder() / f"{file}.toml").read_text(encoding="utf-8"))
    changes = content.pop("sane", {})
    if protocol == "sane":
        content = _changed(content, changes)
    paper = {m: PaperResult.read(numbers, f"{file}.toml, paper.{m}") for m, numbers in content.pop("paper", {}).items()}
    without = content.pop("without", {})
    own = {
        method: {section: options.pop(section) for section in SECTIONS if section in options}
        for method, options in content["methods"].items()
    }
    return Recipe(benchmark, **content, paper=paper, own=own, without=without)


def _changed(content: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`content` with `changes` in it: sections go together, and what is inside a setting is replaced whole."""
    together = {name: {**content[name], **changes.get(name, {})} for name in SECTIONS}
    methods = {name: {**own, **changes.get("methods", {}).get(name, {})} for name, own in content["methods"].items()}
    return {**content, **together, "methods": methods}


def _folder() -> Any:
    return files("remnant.experiments.settings.recipes")
