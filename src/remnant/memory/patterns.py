"""Values given per pattern of layer names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

Value = TypeVar("Value")


def by_layer(patterns: Mapping[str, Value], layers: Iterable[str], what: str) -> dict[str, Value]:
    """Layer → the value of the first pattern that matches it, as written; layers that none matches are left out."""
    layers = list(layers)
    for pattern in patterns:
        if not any(fnmatchcase(layer, pattern) for layer in layers):
            near = difflib.get_close_matches(pattern, layers, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" The layers are: {', '.join(layers)}."
            raise ValueError(f"{what}[{pattern!r}] matches no layer.{hint}")
    found = {layer: [pattern for pattern in patterns if fnmatchcase(layer, pattern)] for layer in layers}
    return {layer: patterns[matching[0]] for layer, matching in found.items() if matching}
