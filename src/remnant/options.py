"""Options are signatures: the parameters of a constructor or function are the only list of its options.

A parameter's annotation says which values it takes. Bounds go into `Annotated`:

    def __init__(self, network, *, lr: Annotated[float, number(0, 10, above=True)] = 0.01, samples: Positive = 300): ...
"""

import inspect
import json
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, is_dataclass, replace
from math import inf, nextafter
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from .errors import UserError, did_you_mean

REQUIRED: Any = inspect.Parameter.empty


class OptionError(UserError, ValueError):
    """An option that does not exist, or a value it does not take."""


@dataclass(frozen=True)
class Kind:
    """The values that an option takes."""

    words: str  # completes the sentence "lr takes …"
    accepts: Callable[[Any], bool]
    # (value, label) → the value in its one form: 1 becomes 1.0. Errors about parts of the value begin with the label.
    convert: Callable[[Any, str], Any] = lambda value, label: value
    optional: bool = False  # whether None is a value
    # The ways to write the option as a table, each with its keys; `"*"` and `"layers.*"` stand for layer patterns.
    forms: tuple[tuple[str, ...], ...] = ()

    def read(self, value: Any, label: str = "The option") -> Any:
        """Returns the value in its one form, or raises an OptionError that begins with `label`."""
        if self.optional and value is None:
            return None
        if not self.accepts(value):
            raise OptionError(f"{label} takes {self.words}.")
        return self.convert(value, label)


class Option(NamedTuple):
    """One option: the values it takes, and its default."""

    kind: Kind
    default: Any = REQUIRED


def options_of(function: Callable[..., Any]) -> dict[str, Option]:
    """Lists the options of a function or class by name.

    The options of a function or dataclass are all its parameters except `seed`. Those of any other class are the
    keyword-only parameters of its constructor and those with a default; where it accepts `**kwargs`, the options of its
    base classes follow.

    >>> def make(seed, *, tasks: Annotated[int, whole(1, 9)] = 3): ...
    >>> {name: (option.kind.words, option.default) for name, option in options_of(make).items()}
    {'tasks': ('a whole number from 1 to 9', 3)}
    """
    found: dict[str, Option] = {}
    takes_positional = not isinstance(function, type) or is_dataclass(function)
    constructors = [vars(cls)["__init__"] for cls in getattr(function, "__mro__", ()) if "__init__" in vars(cls)]
    for owner in constructors or [function]:
        hints: dict[str, Any] = {}
        with suppress(NameError):  # a type that its file imports for type checkers only
            hints = get_type_hints(owner, include_extras=True)
        parameters = inspect.signature(owner).parameters
        for name, parameter in parameters.items():
            default = list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
            positional = parameter.kind is parameter.POSITIONAL_OR_KEYWORD and (
                takes_positional or default is not REQUIRED
            )
            if name in ("self", "seed", *found) or not (positional or parameter.kind is parameter.KEYWORD_ONLY):
                continue
            kind = kind_of(hints.get(name, type(default) if isinstance(default, bool | float) else Any))
            found[name] = Option(or_none(kind) if default is None else kind, default)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
    return found


def checked(function: Callable[..., Any], given: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Returns the given options in their one form, or raises an OptionError for the first that `function` does not take."""
    options = options_of(function)
    for name in given:
        if name not in options:
            raise OptionError(f"{name}={given[name]!r}: no such option of {owner}. {did_you_mean(name, options)}")
    return {name: options[name].kind.read(value, f"{name}={value!r}: {name}") for name, value in given.items()}


def kind_of(annotation: Any) -> Kind:
    """Returns the kind that an annotation asks for: the one inside `Annotated`, or that of the type."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return next((each for each in args[1:] if isinstance(each, Kind)), None) or kind_of(args[0])
    if origin in (types.UnionType, Union):
        others = [arg for arg in args if arg is not type(None)]
        kind = kind_of(others[0]) if len(others) == 1 else ANYTHING
        return or_none(kind) if type(None) in args else kind
    if origin is Literal:
        return choice(args)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return list_of(kind_of(args[0]), len(args) if origin is tuple and ... not in args else None)
    return PLAIN.get(annotation, ANYTHING)


def whole(low: int = 0, high: int = 1_000_000) -> Kind:
    """A whole number from `low` to `high`."""
    return Kind(
        f"a whole number from {low:,} to {high:,}",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high,
    )


def number(low: float, high: float, *, above: bool = False, below: bool = False) -> Kind:
    """A number from `low` to `high`; `above` and `below` exclude the bounds themselves."""
    least, most = nextafter(low, inf) if above else low, nextafter(high, -inf) if below else high
    start = f"above {low:g} and up to" if above else f"from {low:g} to"
    return Kind(
        f"a number {start} {'under ' if below else ''}{high:g}",
        lambda value: isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most,
        lambda value, label: float(value),
    )


def choice(options: Sequence[str]) -> Kind:
    """One of the given words."""
    return Kind(" or ".join(map(repr, options)), lambda value: value in options)


def list_of(kind: Kind, length: int | None = None) -> Kind:
    """A list of values of one kind, not empty."""
    return Kind(
        f"a list [{', '.join(['…'] * (length or 1))}] where each entry is {kind.words}",
        lambda value: isinstance(value, list | tuple) and len(value) > 0 and length in (None, len(value)),
        lambda value, label: [kind.read(item, f"{label}[{index}]") for index, item in enumerate(value)],
    )


def per_layer(kind: Kind) -> Kind:
    """A table of patterns of layer names."""
    return Kind(
        f'a table {{"conv1" = …, "*" = …}} of layer patterns, where each entry is {kind.words}',
        lambda value: isinstance(value, Mapping),
        lambda value, label: {str(layer): kind.read(item, f"{label}.{layer}") for layer, item in value.items()},
        forms=(("*",),),
    )


def each_layer(kind: Kind) -> Kind:
    """One value for all layers, or a table of patterns of layer names."""
    table = per_layer(kind)
    return replace(
        table,
        words=f'{kind.words}, or a table {{"conv1" = …, "*" = …}} of them by layer pattern',
        accepts=lambda value: isinstance(value, Mapping) or kind.accepts(value),
        convert=lambda value, label: table.convert(value if isinstance(value, Mapping) else {"*": value}, label),
    )


def threshold() -> Kind:
    """ε: a number, {start, step} over the tasks, or {layers} by layer pattern. `remnant.memory.parse_threshold` reads it."""
    energy = number(0, 1, above=True)
    parts = {"value": energy, "start": energy, "step": number(0, 1, below=True), "layers": per_layer(energy)}
    tables = ({"value"}, {"start"}, {"start", "step"}, {"layers"})

    def convert(value: Any, label: str) -> dict[str, Any]:
        table = value if isinstance(value, Mapping) else {"value": value}
        found = {name: parts[name].read(part, f"{label}.{name}") for name, part in table.items()}
        return {**found, "step": 0.0} if found.keys() == {"start"} else found

    words = "a number above 0 and up to 1, {start = …, step = …} to raise it with every task, "
    words += 'or {layers = {"hidden.0" = …, "*" = …}}'
    return Kind(
        words,
        lambda value: (
            value.keys() in tables and value.get("layers") != {}
            if isinstance(value, Mapping)
            else energy.accepts(value)
        ),
        convert,
        forms=(("value",), ("start", "step"), ("layers.*",)),
    )


def or_none(kind: Kind) -> Kind:
    """A value of the kind, or None."""
    return kind if kind.optional else replace(kind, words=f"{kind.words}, or none", optional=True)


def _fits_json(value: Any) -> bool:
    try:
        return json.dumps(value, allow_nan=False) != "null"
    except (TypeError, ValueError):
        return False


ANYTHING = Kind(
    "a number, a word, true or false, or a list or table of them",
    _fits_json,
    lambda value, label: json.loads(json.dumps(value)),
)
PLAIN = {
    bool: Kind("true or false", lambda value: isinstance(value, bool)),
    int: Kind("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    float: replace(number(-sys.float_info.max, sys.float_info.max), words="a number"),
    str: Kind("a word", lambda value: isinstance(value, str)),
}
Positive = Annotated[int, whole(1)]
Share = Annotated[float, number(0, 1, below=True)]
