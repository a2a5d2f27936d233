"""Titles of methods and benchmarks, the order in which they are listed, and file names for them."""

import tomllib
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

from remnant.experiments.runs import folder_name

BOUNDS = ("multitask", "single-task")  # they show what can be reached and do not compete (the paper's asterisk)
LISTED_LAST = ("finetune", *BOUNDS)


def read_toml(name: str) -> dict[str, Any]:
    return tomllib.loads((files("remnant.report") / name).read_text(encoding="utf-8"))


TITLES: dict[str, dict[str, str]] = read_toml("names.toml")


def method_title(name: str) -> str:
    return TITLES["methods"].get(name, name)


def short_title(name: str) -> str:
    """The title of a method, cut to 18 characters for figures."""
    title = method_title(name)
    return title if len(title) <= 18 else f"{title[:17]}…"


def benchmark_title(name: str) -> str:
    return TITLES["benchmarks"].get(name, name)


def title_of(method: str, benchmark: str) -> str:
    return f"{method_title(method)} on {benchmark_title(benchmark)}"


def slug(*names: str) -> str:
    """The names, joined, as a part of a file name or of an HTML id."""
    return "-".join(folder_name(name) for name in names)


def ordered_methods(names: Iterable[str]) -> list[str]:
    """Lists GPM first, then the others by name, then fine-tuning and the bounds."""

    def position(name: str) -> tuple[int, bool, str]:
        return LISTED_LAST.index(name) + 1 if name in LISTED_LAST else 0, name != "gpm", name

    return sorted(set(names), key=position)


def ordered_benchmarks(names: Iterable[str]) -> list[str]:
    """Lists benchmarks as in names.toml, and unknown ones after them by name."""
    order = list(TITLES["benchmarks"])
    return sorted(set(names), key=lambda name: (order.index(name) if name in order else len(order), name))
