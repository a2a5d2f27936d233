"""Options are signatures: the keyword-only parameters of a constructor are the one list of its options.

A parameter's annotation says what it takes, its default what it is when nobody says. Bounds go into `Annotated`:

    def __init__(self, network, *, lr: Annotated[float, number(0, 10, above=True)] = 0.01, samples: Positive = 300): ...
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from .errors import UserError
from .suggest import did_you_mean

REQUIRED: Any = inspect.Parameter.empty


class OptionError(UserError, ValueError):
    """An option that does not exist, or a value it does not take."""


class Refused(Exception):  # noqa: N818
    """Raised by a kind's `read`. `part` is the place inside a table, `words` what that place takes."""

    def __init__(self, part: str = "", words: str = "") -> None:
        self.part, self.words = part, words


@dataclass(frozen=True)
class Kind:
    """What an option takes. `words` complete the sentence "lr takes …"; `read` gives a value its one form (1 is 1.0)."""

    words: str
    read: Callable[[Any], Any]
    optional: bool = False

    def check(self, key: str, value: Any, label: str) -> Any:
        """The value in its one form, or an OptionError that begins with `label`."""
        try:
            return self.read(value)
        except Refused as refused:
            raise OptionError(f"{label}: {key}{refused.part} takes {refused.words or self.words}.") from None


class Option(NamedTuple):
    kind: Kind
    default: Any = REQUIRED


def options_of(function: Callable[..., Any]) -> dict[str, Option]:
    """The options of a function or class: its keyword-only parameters, and its bases' where it passes `**` on to them."""
    found: dict[str, Option] = {}
    for owner in _signatures(function):
        hints = get_type_hints(owner, include_extras=True)
        parameters = inspect.signature(owner).parameters.values()
        for parameter in parameters:
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in found:
                default = parameter.default
                default = list(default) if isinstance(default, tuple) else default
                found[parameter.name] = Option(kind_of(hints.get(parameter.name, Any)), default)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return found


def _signatures(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    if not isinstance(function, type):
        return [function]
    return [vars(base)["__init__"] for base in function.__mro__ if "__init__" in vars(base) and base is not object]


def checked(function: Callable[..., Any], given: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """The given options in their one form; an OptionError names the first that `function` does not take."""
    options = options_of(function)
    for name in given:
        if name not in options:
            raise OptionError(f"{name}={given[name]!r}: no such option of {owner}. {did_you_mean(name, options)}")
    return {name: options[name].kind.check(name, value, f"{name}={value!r}") for name, value in given.items()}


def kind_of(annotation: Any) -> Kind:
    """The kind that an annotation asks for; `Annotated[type, kind]` names it outright."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        kinds = [each for each in args[1:] if isinstance(each, Kind)]
        return kinds[0] if kinds else kind_of(args[0])
    if origin in (types.UnionType, Union) and type(None) in args:
        return or_none(kind_of(next(arg for arg in args if arg is not type(None))))
    if origin is Literal:
        return choice(args)
    if origin is tuple and ... not in args:
        return list_of(kind_of(args[0]), len(args))
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return list_of(kind_of(args[0]))
    plain = {bool: flag, int: whole, float: any_number, str: text}
    return plain[annotation]() if annotation in plain else anything()


def whole(low: int = 0, high: int = 1_000_000) -> Kind:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Refused
        return value

    return Kind(f"a whole number from {low:,} to {high:,}", read)


def number(low: float, high: float, *, above: bool = False, below: bool = False) -> Kind:
    """A number from `low` to `high`; `above` and `below` leave the bounds themselves out."""

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise Refused
        if (above and value == low) or (below and value == high):
            raise Refused
        return float(value)

    start = f"above {low:g} and up to" if above else f"from {low:g} to"
    return Kind(f"a number {start} {'under ' if below else ''}{high:g}", read)


def any_number() -> Kind:
    return replace(number(-math.inf, math.inf, above=True, below=True), words="a number")


def choice(options: Sequence[str]) -> Kind:
    def read(value: Any) -> Any:
        if value not in options:
            raise Refused
        return value

    return Kind(" or ".join(map(repr, options)), read)


def flag() -> Kind:
    return _instance(bool, "true or false")


def text() -> Kind:
    return _instance(str, "a word")


def _instance(type_: type, words: str) -> Kind:
    def read(value: Any) -> Any:
        if not isinstance(value, type_):
            raise Refused
        return value

    return Kind(words, read)


def list_of(kind: Kind, length: int | None = None) -> Kind:
    def read(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple) or not value or (length is not None and len(value) != length):
            raise Refused
        try:
            return [kind.read(item) for item in value]
        except Refused:
            raise Refused from None

    return Kind(f"a list [{', '.join(['…'] * (length or 1))}] with in each place {kind.words}", read)


def per_layer(kind: Kind) -> Kind:
    """A table of layer-name patterns."""

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Refused
        return {str(pattern): kind.read(item) for pattern, item in value.items()}

    return Kind(f'a table {{"conv1" = …, "*" = …}} of layer patterns with for each {kind.words}', read)


def each_layer(kind: Kind) -> Kind:
    """One value for all layers, or a table of layer-name patterns."""

    def read(value: Any) -> dict[str, Any]:
        return dict(per_layer(kind).read(value if isinstance(value, dict) else {"*": value}))

    return Kind(f'{kind.words}, or a table {{"conv1" = …, "*" = …}} of them by layer pattern', read)


def or_none(kind: Kind) -> Kind:
    return Kind(f"{kind.words}, or none", lambda value: None if value is None else kind.read(value), optional=True)


def anything() -> Kind:
    """Whatever a settings file can hold."""

    def read(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(key): read(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [read(item) for item in value]
        if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
            raise Refused
        return value

    return Kind("a number, a word, true or false, or a list or table of them", read)


Positive = Annotated[int, whole(1)]
Share = Annotated[float, number(0, 1, below=True)]
