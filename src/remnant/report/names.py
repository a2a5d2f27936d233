"""Methods and benchmarks: their titles, their order, file names for them, and which of them the paper's tables have."""

import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

from remnant.errors import UserError
from remnant.experiments.paper import load_table, table_names
from remnant.experiments.runs import folder_name
from remnant.experiments.settings import recipe

BOUNDS = ("multitask", "single-task")  # they show what can be reached and do not compete (the paper's asterisk)
LISTED_LAST = ("finetune", *BOUNDS)


def read_toml(name: str) -> dict[str, Any]:
    return tomllib.loads((files("remnant.report") / name).read_text(encoding="utf-8"))


TITLES: dict[str, dict[str, str]] = read_toml("names.toml")

paper_table = cache(load_table)  # whose rows keep their settings


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


def sort_methods(names: Iterable[str]) -> list[str]:
    """Lists GPM first, then the others by name, then fine-tuning and the bounds."""
    last = {name: position for position, name in enumerate(LISTED_LAST, 1)}
    return sorted(set(names), key=lambda name: (last.get(name, 0), name != "gpm", name))


def sort_benchmarks(names: Iterable[str]) -> list[str]:
    """Lists benchmarks as in names.toml, and unknown ones after them by name."""
    order = list(TITLES["benchmarks"])
    return sorted(set(names), key=lambda name: (order.index(name) if name in order else len(order), name))


@cache
def expected_methods() -> dict[str, list[str]]:
    """The methods that the paper's tables have, for each benchmark."""
    found: dict[str, set[str]] = {}
    for name in table_names():
        for row in paper_table(name).rows:
            found.setdefault(row.benchmark, set()).add(row.method)
    return {benchmark: sort_methods(found[benchmark]) for benchmark in sort_benchmarks(found)}


def has_recipe(benchmark: str, method: str) -> bool:
    try:
        return method in recipe(benchmark).methods
    except UserError:
        return False


def run_command(benchmark: str, method: str) -> str:
    """The command that runs a method as in its recipe; empty if there is no recipe."""
    return f"remnant run {benchmark} {method} --seeds 5" if has_recipe(benchmark, method) else ""
