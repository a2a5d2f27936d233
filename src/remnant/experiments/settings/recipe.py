"""Recipes: the settings of every method on a benchmark, and the paper's numbers, read from the package's TOML files."""

import os
import tomllib
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from remnant.data import BENCHMARKS, DATA_PATH
from remnant.errors import did_you_mean
from remnant.options import OptionError
from remnant.registry import IN_FILE

FALLBACK = "default.toml"  # for streams without their own recipe
PROTOCOLS = ("paper", "sane")
FILES = {file.name: file for file in (files(__package__) / "recipes").iterdir() if file.name.endswith(".toml")}
RECIPES = sorted(name.removesuffix(".toml") for name in FILES if name != FALLBACK)  # the benchmarks that have one
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


@dataclass(frozen=True)
class Recipe:
    """One benchmark's settings under one protocol. Recipes are shared: copy their dictionaries before changing them."""

    benchmark: str
    file: str
    stream: dict[str, Any]
    network: dict[str, Any]
    training: dict[str, Any]
    methods: dict[str, dict[str, Any]]  # each method's options
    optimizer: dict[str, Any] = field(default_factory=dict)
    paper: dict[str, PaperResult] = field(default_factory=dict)
    # The sections in which a method differs from the others: `[methods.NAME.training]` in the file.
    differing: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    without: dict[str, str] = field(default_factory=dict)  # methods that make no sense here, each with the reason

    def values(self, method: str) -> dict[str, Any]:
        """Returns a copy of a method's settings by the keys that `--set` takes: `lr`, `training.epochs`."""
        found = dict(self.methods.get(method, {}))
        for section in SECTIONS:
            shared, own = getattr(self, section), self.differing.get(method, {}).get(section, {})
            another = "name" in own and own["name"] != shared.get("name")  # the shared options describe a different one
            options = own if another else {**shared, **own}
            found |= {f"{section}.{name}": value for name, value in options.items()}
        return deepcopy(found)


def section_of(key: str) -> str:
    """Returns the section of a key. The method's own options have no prefix."""
    return key.partition(".")[0] if "." in key else "options"


@cache
def recipe(benchmark: str, protocol: str = "paper") -> Recipe:
    """Returns the recipe of a benchmark. Streams from files or an installed package share the recipe `default.toml`."""
    if protocol not in PROTOCOLS:
        raise OptionError(f"--protocol {protocol}: write {' or '.join(PROTOCOLS)}.")
    has_own, own_file = benchmark in RECIPES, IN_FILE in benchmark or benchmark.endswith(".py")
    if not has_own and not own_file and benchmark not in BENCHMARKS and not DATA_PATH.search(benchmark):
        folder = f"For the folder of that name, write {benchmark}/." if os.path.isdir(benchmark) else ""
        hint = folder or did_you_mean(benchmark, BENCHMARKS, "  (remnant list benchmarks shows all.)")
        raise OptionError(f"No benchmark called '{benchmark}'. {hint}")
    file = f"{benchmark}.toml" if has_own else FALLBACK
    content = tomllib.loads(FILES[file].read_text(encoding="utf-8"))
    sane, methods = content.pop("sane", {}), content["methods"]
    if protocol == "sane":  # a changed setting is replaced as a whole, even if it is a table
        for method, changes in sane.pop("methods", {}).items():
            methods[method] |= changes
        for section, changes in sane.items():
            content[section] = content.get(section, {}) | changes
    paper = {m: PaperResult(**numbers) for m, numbers in content.pop("paper", {}).items()}
    differing = {
        method: {section: options.pop(section) for section in SECTIONS if section in options}
        for method, options in methods.items()
    }
    return Recipe(benchmark, file, **content, paper=paper, differing=differing)
