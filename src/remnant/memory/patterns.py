"""Patterns of layer names, with `*` for any text: values per pattern, and the names that `protect` and `exclude` select."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

from remnant.errors import did_you_mean, nearest

Value = TypeVar("Value")


def by_layer(patterns: Mapping[str, Value], layers: Iterable[str], option: str) -> dict[str, Value]:
    """Returns layer → the value of the first pattern that matches it, without the layers that no pattern matches.

    Raises a ValueError, with the name of the option, if a pattern matches no layer.

    >>> by_layer({"conv*": 0.95, "*": 0.99}, ["conv1", "fc1"], "threshold")
    {'conv1': 0.95, 'fc1': 0.99}
    """
    layers = list(layers)
    for pattern in patterns:
        _check_matches(pattern, layers, f"{option}[{pattern!r}] matches no layer.")
    found = {layer: [pattern for pattern in patterns if fnmatchcase(layer, pattern)] for layer in layers}
    return {layer: patterns[matching[0]] for layer, matching in found.items() if matching}


class Selection:
    """The names that a user's `protect` and `exclude` patterns select."""

    def __init__(self, protect: Iterable[str] | None, exclude: Iterable[str]) -> None:
        for name, patterns in (("protect", protect), ("exclude", exclude)):
            if isinstance(patterns, str):
                raise TypeError(f'{name} takes a list of patterns: write {name}=["{patterns}"].')
        self.protect = None if protect is None else list(protect)
        self.exclude = list(exclude)

    def check(self, names: list[str]) -> None:
        """Refuses a pattern that matches nothing: a typo would protect too much or too little."""
        for pattern in [*(self.protect or []), *self.exclude]:
            _check_matches(pattern, names, f"The pattern {pattern!r} matches nothing in the model.")

    def __contains__(self, name: str) -> bool:
        return (self.protect is None or _covers(self.protect, name)) and not self.excludes(name)

    def excludes(self, name: str) -> bool:
        return _covers(self.exclude, name)


def _covers(patterns: list[str], name: str) -> bool:
    """A pattern covers the names that it matches and everything below them."""
    pieces = name.split(".")
    lineage = [".".join(pieces[: depth + 1]) for depth in range(len(pieces))]
    return any(fnmatchcase(ancestor, pattern) for ancestor in lineage for pattern in patterns)


def _check_matches(pattern: str, names: list[str], message: str) -> None:
    if not any(fnmatchcase(name, pattern) for name in names):
        short = len(names) <= 10 or nearest(pattern, names)
        choices = names if short else {name.split(".")[0] for name in names}
        raise ValueError(f"{message} {did_you_mean(pattern, choices)}")
