"""The settings of a run and the values they take, read from the signatures of its method, stream, network and optimizer."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from remnant.data import BENCHMARKS
from remnant.methods import METHODS, OPTIMIZERS, Method
from remnant.models import MODELS, Network
from remnant.options import ANYTHING, REQUIRED, Kind, Option, OptionError, options_of, or_none
from remnant.registry import Registry, UnknownNameError
from remnant.training import Schedule

from .recipe import Recipe

EARLY_STOPPING = ("patience", "factor", "lr_min")  # options of Schedule that are set together or not at all
PLAIN_SGD = "sgd"


class Section(NamedTuple):
    """The settings that share a prefix such as `network.`, and the name of the network (method, stream, …) they belong to."""

    owner: str
    options: dict[str, Option]


def find(registry: Registry[Any], name: Any, label: str = "", base: type = object) -> Any:
    """Returns the thing called `name`; raises an OptionError that begins with `label` if it is missing or not a `base`."""
    try:
        found = registry[str(name)]
    except UnknownNameError as error:
        raise OptionError(f"{label}{error}") from error
    if base is not object and not (isinstance(found, type) and issubclass(found, base)):
        raise OptionError(f"{label}{name} is not a subclass of remnant's {base.__name__}.")
    return found


def method_section(recipe: Recipe, method: str) -> Section:
    """Returns the options of a method; raises an OptionError if the method makes no sense on the benchmark."""
    found = find(METHODS, method, base=Method)
    reason = recipe.without.get(method, "")
    # A recipe with one method that needs the task has a head per task, and suits all such methods.
    if found.needs_task and not any(METHODS[other].needs_task for other in recipe.methods if other in METHODS):
        reason = f"{method} must be told the task at test time: it runs on streams with a head per task."
    if reason:
        there = ", ".join(sorted(recipe.methods))
        raise OptionError(f"{recipe.benchmark} has no method '{method}'. {reason} {recipe.benchmark} has: {there}.")
    options = options_of(found)
    if "lr" not in options:
        raise OptionError(
            f"{method} has no option lr, which every method takes. Add `*, lr: float = 0.01` to its constructor, or "
            "`**options` that it passes to super().__init__."
        )
    return Section(method, options)


def default_options(section: Section) -> dict[str, Any]:
    """Returns all defaults that a settings file can hold, for a method that the recipe does not mention."""
    values = {}
    for name, (kind, default) in section.options.items():
        with suppress(OptionError):  # raised if there is no default, or if settings cannot hold it
            values[name] = kind.read(default)
    return {name: value for name, value in values.items() if value is not None}


def stream_section(benchmark: str, given: Iterable[str] = ()) -> Section:
    """Returns the options of a stream function, with those `given` if it takes any; a ready stream has none."""
    function = find(BENCHMARKS, benchmark)
    if not callable(function):
        return Section(benchmark, {})
    takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())
    others = {name: Option(ANYTHING, None) for name in given if takes_any}
    return Section(benchmark, {**others, **options_of(function)})


def named_section(registry: Registry[Any], name: Any, label: str = "") -> Section:
    """Returns the name and the options of a network or optimizer."""
    options = options_of(find(registry, name, label, Network if registry is MODELS else object))
    default = PLAIN_SGD if registry is OPTIMIZERS else REQUIRED
    allowed = Kind(
        f"{', '.join(registry)} or path/to/file.py:Name", lambda value: True, lambda value, label: str(value)
    )
    return Section(str(name), {"name": Option(allowed, default), **options})


def training_section() -> Section:
    """Returns the fields of the training schedule. The learning rate is an option of the method."""
    options = {name: option for name, option in options_of(Schedule).items() if name != "lr"}
    return Section("training", options | {name: Option(or_none(options[name].kind), None) for name in EARLY_STOPPING})
