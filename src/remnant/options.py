"""Options are signatures: the parameters of a constructor or function are the only list of its options.

A parameter's annotation says which values it takes. Bounds go into `Annotated`:

    def __init__(self, network, *, lr: Annotated[float, number(0, 10, above=True)] = 0.01, samples: Positive = 300): ...
"""

from __future__ import annotations

import inspect
import json
import math
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, is_dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from .errors import UserError
from .suggest import did_you_mean

REQUIRED: Any = inspect.Parameter.empty


class OptionError(UserError, ValueError):
    """An option that does not exist, or a value it does not take."""


class Refused(Exception):  # noqa: N818
    """Raised by a kind's `read`. `part` is the key inside a table, `words` describes the values allowed there."""

    def __init__(self, part: str = "", words: str = "") -> None:
        self.part, self.words = part, words


@dataclass(frozen=True)
class Kind:
    """The values that an option takes.

    Args:
        words: completes the sentence "lr takes …".
        read: brings a value into its one form (1 becomes 1.0), or raises `Refused`.
        optional: whether None is a value.
        forms: the ways to write the option as a table, each with its keys; `"*"` and `"layers.*"` stand for layer patterns.
    """

    words: str
    read: Callable[[Any], Any]
    optional: bool = False
    forms: tuple[tuple[str, ...], ...] = ()

    def check(self, key: str, value: Any, label: str) -> Any:
        """Returns the value in its one form; otherwise raises an OptionError that begins with `label`."""
        try:
            return self.read(value)
        except Refused as refused:
            raise OptionError(f"{label}: {key}{refused.part} takes {refused.words or self.words}.") from None


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
    owners = [vars(c)["__init__"] for c in getattr(function, "__mro__", ()) if "__init__" in vars(c)] or [function]
    for owner in owners:
        hints: dict[str, Any] = {}
        with suppress(NameError):  # a type that its file imports for type checkers only
            hints = get_type_hints(owner, include_extras=True)
        parameters = inspect.signature(owner).parameters.values()
        for parameter in parameters:
            if parameter.name not in found and _is_option(parameter, function):
                default = list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
                kind = kind_of(hints.get(parameter.name, type(default) if isinstance(default, bool | float) else Any))
                found[parameter.name] = Option(or_none(kind) if default is None else kind, default)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return found


def _is_option(parameter: inspect.Parameter, function: Callable[..., Any]) -> bool:
    if parameter.name in ("self", "seed"):
        return False
    if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
        return parameter.default is not REQUIRED or not isinstance(function, type) or is_dataclass(function)
    return parameter.kind is parameter.KEYWORD_ONLY


def checked(function: Callable[..., Any], given: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Returns the given options in their one form, or raises an OptionError for the first that `function` does not take."""
    options = options_of(function)
    for name in given:
        if name not in options:
            raise OptionError(f"{name}={given[name]!r}: no such option of {owner}. {did_you_mean(name, options)}")
    return {name: options[name].kind.check(name, value, f"{name}={value!r}") for name, value in given.items()}


def kind_of(annotation: Any) -> Kind:
    """Returns the kind that an annotation asks for: the one inside `Annotated`, or that of the type."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        kinds = [each for each in args[1:] if isinstance(each, Kind)]
        return kinds[0] if kinds else kind_of(args[0])
    if origin in (types.UnionType, Union):
        others = [arg for arg in args if arg is not type(None)]
        kind = kind_of(others[0]) if len(others) == 1 else anything()
        return or_none(kind) if type(None) in args else kind
    if origin is Literal:
        return choice(args)
    if origin is tuple and ... not in args:
        return list_of(kind_of(args[0]), len(args))
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return list_of(kind_of(args[0]))
    return PLAIN[annotation] if annotation in PLAIN else anything()


def _passing(words: str, passes: Callable[[Any], bool], form: Callable[[Any], Any] = lambda value: value) -> Kind:
    """A kind whose values pass a test; `form` then brings them into their one form."""

    def read(value: Any) -> Any:
        if not passes(value):
            raise Refused
        return form(value)

    return Kind(words, read)


def whole(low: int = 0, high: int = 1_000_000) -> Kind:
    """A whole number from `low` to `high`."""
    words = f"a whole number from {low:,} to {high:,}"
    return _passing(
        words, lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    )


def number(low: float, high: float, *, above: bool = False, below: bool = False) -> Kind:
    """A number from `low` to `high`; `above` and `below` exclude the bounds themselves."""

    def passes(value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return low <= value <= high and not (above and value == low) and not (below and value == high)

    start = f"above {low:g} and up to" if above else f"from {low:g} to"
    return _passing(f"a number {start} {'under ' if below else ''}{high:g}", passes, float)


def choice(options: Sequence[str]) -> Kind:
    """One of the given words."""
    return _passing(" or ".join(map(repr, options)), lambda value: value in options)


def list_of(kind: Kind, length: int | None = None) -> Kind:
    """A list of values of one kind, not empty."""

    def passes(value: Any) -> bool:
        return isinstance(value, list | tuple) and len(value) > 0 and length in (None, len(value))

    words = f"a list [{', '.join(['…'] * (length or 1))}] where each entry is {kind.words}"
    return _passing(words, passes, lambda value: [kind.read(item) for item in value])


def per_layer(kind: Kind) -> Kind:
    """A table of patterns of layer names."""
    words = f'a table {{"conv1" = …, "*" = …}} of layer patterns, where each entry is {kind.words}'
    table = _passing(
        words, lambda value: isinstance(value, Mapping), lambda value: {str(p): kind.read(value[p]) for p in value}
    )
    return replace(table, forms=(("*",),))


def each_layer(kind: Kind) -> Kind:
    """One value for all layers, or a table of patterns of layer names."""
    table = per_layer(kind)
    words = f'{kind.words}, or a table {{"conv1" = …, "*" = …}} of them by layer pattern'
    return replace(
        table, words=words, read=lambda value: table.read(value if isinstance(value, Mapping) else {"*": value})
    )


def threshold() -> Kind:
    """ε: a number, {start, step} over the tasks, or {layers} by layer pattern. `remnant.memory.parse_threshold` reads it."""
    energy, step = number(0, 1, above=True), number(0, 1, below=True)
    forms = (("value",), ("start", "step"), ("layers.*",))
    words = (
        "a number above 0 and up to 1, {start = …, step = …} to raise it with every task, "
        'or {layers = {"hidden.0" = …, "*" = …}}'
    )

    def read_part(name: str, value: Any) -> Any:
        kind = step if name == "step" else energy
        try:
            return kind.read(value)
        except Refused:
            raise Refused(f".{name}", kind.words) from None

    def read(value: Any) -> dict[str, Any]:
        table = value if isinstance(value, Mapping) else {"value": value}
        if table.keys() == {"layers"} and isinstance(table["layers"], Mapping) and table["layers"]:
            return {"layers": {name: read_part(f"layers.{name}", e) for name, e in table["layers"].items()}}
        if table.keys() == {"start"}:
            table = {**table, "step": 0.0}
        if table.keys() not in ({"value"}, {"start", "step"}):
            raise Refused
        return {name: read_part(name, table[name]) for name in table}

    return Kind(words, read, forms=forms)


def or_none(kind: Kind) -> Kind:
    """A value of the kind, or None."""
    if kind.optional:
        return kind
    read = kind.read
    words = f"{kind.words}, or none"
    return replace(kind, words=words, optional=True, read=lambda value: None if value is None else read(value))


def anything() -> Kind:
    """Any value that a settings file can hold."""

    def read(value: Any) -> Any:
        try:
            return json.loads(json.dumps(REQUIRED if value is None else value, allow_nan=False))
        except (TypeError, ValueError):
            raise Refused from None

    return Kind("a number, a word, true or false, or a list or table of them", read)


PLAIN = {
    bool: _passing("true or false", lambda value: isinstance(value, bool)),
    int: whole(),
    float: replace(number(-math.inf, math.inf, above=True, below=True), words="a number"),
    str: _passing("a word", lambda value: isinstance(value, str)),
}
Positive = Annotated[int, whole(1)]
Share = Annotated[float, number(0, 1, below=True)]
