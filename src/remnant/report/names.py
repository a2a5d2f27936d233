"""Methods and benchmarks: their titles, their order, file names for them, and whether they have a recipe."""

import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

from remnant.errors import UserError
from remnant.experiments.paper import load_table
from remnant.experiments.runs import folder_name
from remnant.experiments.settings import recipe

BOUNDS = ("multitask", "single-task")  # they show what can be reached and do not compete (the paper's asterisk)


def read_toml(name: str) -> dict[str, Any]:
    return tomllib.loads((files("remnant.report") / name).read_text(encoding="utf-8"))


TEXTS = read_toml("texts.toml")

paper_table = cache(load_table)  # its rows cache their settings


def method_title(name: str) -> str:
    return str(TEXTS["methods"].get(name, name))


def short_title(name: str) -> str:
    """The title of a method, cut for figures."""
    return shortened(method_title(name), 18)


def shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def benchmark_title(name: str) -> str:
    return str(TEXTS["benchmarks"].get(name, name))


def title_of(method: str, benchmark: str) -> str:
    return f"{method_title(method)} on {benchmark_title(benchmark)}"


def slug(*names: str) -> str:
    """The names, joined, as a part of a file name or of an HTML id."""
    return "-".join(folder_name(name) for name in names)


def in_order(kind: str, names: Iterable[str]) -> list[str]:
    """Lists "benchmarks" or "methods" once each: a user's own by name, then the others as in texts.toml."""
    order = list(TEXTS[kind])
    return sorted(set(names), key=lambda name: (order.index(name) if name in order else -1, name))


def has_recipe(benchmark: str, method: str) -> bool:
    try:
        return method in recipe(benchmark).methods
    except UserError:
        return False
