"""A method that a benchmark does not have: why, and what to do about it."""

from __future__ import annotations

from difflib import get_close_matches

from remnant.data.errors import did_you_mean

from . import catalogue
from . import schema as known
from .recipe import Recipe, recipe, recipe_names
from .types import SettingsError


def not_on(base: Recipe, method: str) -> SettingsError:
    """For one who asked for the method on this benchmark."""
    has = f"{base.benchmark} has: {', '.join(sorted(base.methods))}."
    return SettingsError(f"{base.benchmark} has no method '{method}'. {_why(base, method)}{has}")


def not_without_benchmark(base: Recipe, method: str) -> SettingsError:
    """For one who asked what can be set, and named no benchmark: `base` is the recipe of streams that have none."""
    if method not in known.methods():
        return SettingsError(f"No method called '{method}'. {did_you_mean(method, known.methods())}")
    there = _recipes_with(method)
    instead = f"Pass --benchmark {' or '.join(there)}, or add one." if there else "Add one."
    return SettingsError(
        f"{method} has no entry [methods.{method}] in {base.file}, the recipe where no benchmark is named. {instead}"
    )


def _why(base: Recipe, method: str) -> str:
    """A sentence or more, and a space; nothing where there is nothing to say."""
    if method in base.without:
        return f"{base.without[method]} "
    # Where one that must be told the task can run, all such can.
    if catalogue.needs_task(method) and not any(map(catalogue.needs_task, base.methods)):
        return f"{method} must be told the task at test time: it runs on streams with a head per task. "
    if method in known.methods():
        there = _recipes_with(method)
        instead = f", or run it on {' or '.join(there)}" if there else ""
        return f"{method} has no entry [methods.{method}] in {base.file}: add one{instead}. "
    near = get_close_matches(method, base.methods, n=1)
    return f"Did you mean '{near[0]}'? " if near else ""


def _recipes_with(method: str, most: int = 3) -> list[str]:
    return [name for name in recipe_names() if method in recipe(name, "paper").methods][:most]
