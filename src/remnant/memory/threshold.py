"""ε: how much of a layer's input energy a task's memory must explain, per layer and task (Sec. C.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from .patterns import by_layer

Threshold = float | Mapping[str, float] | Callable[[str, int], float]


@dataclass(frozen=True)
class LinearThreshold:
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
    chosen = by_layer(values, layers, "threshold")
    for layer in layers:
        if layer not in chosen:
            raise ValueError(f"No threshold pattern matches layer {layer!r}. Add one, or '*' for all the others.")
    return lambda layer, task: chosen[layer]
