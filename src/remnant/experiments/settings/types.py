"""What a setting may be: checks of type and range that can say in words what they want."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Union, get_args, get_origin

from remnant.options import OptionError


SettingsError = OptionError


class _RefusedError(Exception):
    """A value is not of its kind. Carries the place inside it, where it has parts."""

    def __init__(self, part: str = "", words: str = "") -> None:
        self.part, self.words = part, words


@dataclass(frozen=True)
class Kind:
    """`words` complete the sentence "lr takes …"; `read` gives a value its one form, so that 1 and 1.0 are one lr."""

    words: str
    read: Callable[[Any], Any]
    optional: bool = False

    def check(self, key: str, value: Any, label: str) -> Any:
        """The value in its one form, or an error that begins with `label`, the place the value was written."""
        try:
            return self.read(value)
        except _RefusedError as refused:
            raise SettingsError(f"{label}: {key}{refused.part} takes {refused.words or self.words}.") from None

    def is_form(self, value: Any) -> bool:
        """Whether the value is one of this kind as it is, and none of another."""
        try:
            return bool(self.read(value) == value)
        except _RefusedError:
            return False

    def or_word(self, word: str, meaning: str) -> Kind:
        return Kind(
            f"{self.words}, or {word!r} ({meaning})", lambda value: value if value == word else self.read(value)
        )

    def or_none(self) -> Kind:
        return replace(self, words=f"{self.words}, or none", optional=True)


def whole(low: int, high: int = 1_000_000) -> Kind:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _RefusedError
        return value

    return Kind(f"a whole number from {low:,} to {high:,}", read)


def number(low: float, high: float, *, above: bool = False, below: bool = False) -> Kind:
    """A number from `low` to `high`; `above` and `below` leave the bounds themselves out."""

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise _RefusedError
        if (above and value == low) or (below and value == high):
            raise _RefusedError
        return float(value)

    start = f"above {low:g} and up to" if above else f"from {low:g} to"
    return Kind(f"a number {start} {'under ' if below else ''}{high:g}", read)


def any_number() -> Kind:
    return replace(number(-math.inf, math.inf, above=True, below=True), words="a number")


def choice(options: Sequence[str]) -> Kind:
    def read(value: Any) -> Any:
        if value not in options:
            raise _RefusedError
        return value

    return Kind(" or ".join(map(repr, options)), read)


def flag() -> Kind:
    def read(value: Any) -> bool:
        if not isinstance(value, bool):
            raise _RefusedError
        return value

    return Kind("true or false", read)


def text() -> Kind:
    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise _RefusedError
        return value

    return Kind("a word", read)


def list_of(kind: Kind, length: int | None = None) -> Kind:
    def read(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple) or not value or (length is not None and len(value) != length):
            raise _RefusedError
        try:
            return [kind.read(item) for item in value]
        except _RefusedError:
            raise _RefusedError from None

    return Kind(f"a list [{', '.join(['…'] * (length or 1))}] with in each place {kind.words}", read)


def per_layer(kind: Kind) -> Kind:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _RefusedError
        return {str(pattern): kind.read(item) for pattern, item in value.items()}

    return Kind(f'a table {{"conv1" = …, "*" = …}} of layer patterns with for each {kind.words}', read)


def each_layer(kind: Kind) -> Kind:
    def read(value: Any) -> dict[str, Any]:
        return dict(per_layer(kind).read(value if isinstance(value, dict) else {"*": value}))

    return Kind(f'{kind.words}, or a table {{"conv1" = …, "*" = …}} of them by layer pattern', read)


def anything() -> Kind:
    """Whatever a settings file can hold: for options only their owner knows."""

    def read(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(key): read(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [read(item) for item in value]
        if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
            raise _RefusedError
        return value

    return Kind("a number, a word, true or false, or a list or table of them", read)


ENERGY = number(0, 1, above=True)  # a share of a layer's input energy

# The three ways to write ε, each by the keys it has. A key of one form does not go with a key of another.
THRESHOLD_FORMS = ({"value"}, {"start", "step"}, {"layers"})


def threshold() -> Kind:
    """ε: a number; {start, step} over the tasks; or {layers}, a number per layer pattern (remnant.memory.threshold)."""
    words = (
        "a number above 0 and up to 1, {start = …, step = …} to raise it with every task, "
        'or {layers = {"hidden.0" = …, "*" = …}}'
    )
    step = number(0, 1, below=True)

    def part(name: str, kind: Kind, value: Any) -> Any:
        try:
            return kind.read(value)
        except _RefusedError:
            raise _RefusedError(f".{name}", kind.words) from None

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            value = {"value": value}
        match value:
            case {"value": single} if len(value) == 1:
                return {"value": part("value", ENERGY, single)}
            case {"start": start} if value.keys() <= {"start", "step"}:
                return {"start": part("start", ENERGY, start), "step": part("step", step, value.get("step", 0.0))}
            case {"layers": dict(layers)} if len(value) == 1 and layers:
                return {"layers": {name: part(f"layers.{name}", ENERGY, layers[name]) for name in layers}}
        raise _RefusedError

    return Kind(words, read)


def like(value: Any) -> Kind:
    """The kind of an option nobody described, judged by the value its recipe gives it."""
    if isinstance(value, bool):
        return flag()
    if isinstance(value, int):
        return whole(0, 1_000_000_000)
    if isinstance(value, float):
        return any_number()
    return text() if isinstance(value, str) else anything()


def annotated(annotation: Any, bounds: Kind | None = None) -> Kind:
    """The kind a signature's annotation asks for; `bounds` is the kind of the numbers in it."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (types.UnionType, Union) and type(None) in args:
        return annotated(next(arg for arg in args if arg is not type(None)), bounds).or_none()
    if origin is Literal:
        return choice(args)
    if origin is tuple and ... not in args:
        return list_of(annotated(args[0], bounds), len(args))
    if origin is not None and isinstance(origin, type) and issubclass(origin, Sequence):
        return list_of(annotated(args[0], bounds))
    if annotation is bool:
        return flag()
    if annotation is int:
        return bounds or whole(0)
    if annotation is float:
        return bounds or any_number()
    return text() if annotation is str else anything()
