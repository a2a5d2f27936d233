"""ε: how much of a layer's input energy a task's memory must explain, per layer and task."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

Threshold = float | Mapping[str, float] | Callable[[str, int], float]


@dataclass(frozen=True)
class Schedule:
    """ε₀ + δ·t for the t-th task, counted from 0; never above 1."""

    start: float
    step: float = 0.0

    def __post_init__(self) -> None:
        check(self.start, "the schedule's start")

    def __call__(self, layer: str, task: int) -> float:
        return min(1.0, self.start + self.step * task)


def check(value: object, what: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
        raise ValueError(f"{what} is {value!r}: a threshold lies in (0, 1], for example 0.97.")
    return float(value)


def resolve(threshold: Threshold, layers: Iterable[str]) -> Callable[[str, int], float]:
    """One function (layer name, task index) → ε for every way a threshold can be given."""
    layers = list(layers)
    if isinstance(threshold, Mapping):
        return _from_patterns(threshold, layers)
    if callable(threshold):
        ask = threshold
        return lambda layer, task: check(ask(layer, task), f"threshold({layer!r}, {task})")
    value = check(threshold, "threshold")
    return lambda layer, task: value


def _from_patterns(patterns: Mapping[str, float], layers: list[str]) -> Callable[[str, int], float]:
    values = {pattern: check(value, f"threshold[{pattern!r}]") for pattern, value in patterns.items()}
    chosen: dict[str, float] = {}
    for layer in layers:
        found = [pattern for pattern in values if fnmatchcase(layer, pattern)]
        if not found:
            raise ValueError(f"No threshold pattern matches layer {layer!r}. Add one, or '*' for all the others.")
        chosen[layer] = values[found[0]]  # the first that matches, as written
    for pattern in values:
        if not any(fnmatchcase(layer, pattern) for layer in layers):
            near = difflib.get_close_matches(pattern, layers, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" The layers are: {', '.join(layers)}."
            raise ValueError(f"threshold[{pattern!r}] matches no layer.{hint}")
    return lambda layer, task: chosen[layer]
