"""The threshold ε: the share of a layer's input energy that a task's memory must explain, per layer and task (Sec. C.5)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .patterns import by_layer

ThresholdFunction = Callable[[str, int], float]  # (layer name, task index) → ε
ThresholdSetting = float | Mapping[str, Any] | ThresholdFunction


@dataclass(frozen=True)
class LinearThreshold:
    """ε₀ + δ·t for the t-th task, counted from 0; never above 1."""

    start: float
    step: float = 0.0

    def __call__(self, layer: str, task: int) -> float:
        return min(1.0, self.start + self.step * task)


@dataclass(frozen=True)
class Threshold:
    """ε in the one form that `parse_threshold` gives it."""

    value: dict[str, float] | ThresholdFunction  # by pattern of layer names, or by layer and task

    @property
    def setting(self) -> Any:
        """The form in which a saved memory keeps it; None for a user's function, which no file can hold."""
        match self.value:
            case LinearThreshold(start, step):
                return {"start": start, "step": step} if step else start
            case dict():
                return {"layers": self.value}
        return None

    def for_layers(self, layers: Iterable[str]) -> ThresholdFunction:
        """Returns the function (layer, task) → ε."""
        if not isinstance(self.value, dict):
            function = self.value
            return lambda layer, task: _check(function(layer, task), f"threshold({layer!r}, {task})")
        layers = list(layers)
        values = by_layer(self.value, layers, "threshold")
        if missing := [layer for layer in layers if layer not in values]:
            raise ValueError(
                f"No threshold pattern matches layer {missing[0]!r}. Add one, or '*' for all other layers."
            )
        return lambda layer, task: values[layer]


def parse_threshold(threshold: ThresholdSetting) -> Threshold:
    """Reads every form in which ε can be given.

    The forms are a number or `{"value": ε}` for all layers and tasks, `{"start": ε₀, "step": δ}` for ε₀ + δ·t, `{pattern: ε}`
    or `{"layers": {pattern: ε}}` by layer name, and a function (layer, task) → ε.

    >>> epsilon = parse_threshold({"start": 0.97, "step": 0.003}).for_layers(["fc1"])
    >>> epsilon("fc1", 2)
    0.976
    """
    if callable(threshold):
        return Threshold(threshold)
    if not isinstance(threshold, Mapping):
        return Threshold(LinearThreshold(_check(threshold, "threshold")))
    if set(threshold) == {"value"}:
        return Threshold(LinearThreshold(_check(threshold["value"], "threshold")))
    if "start" in threshold and set(threshold) <= {"start", "step"}:
        step = threshold.get("step", 0.0)
        if not isinstance(step, int | float) or isinstance(step, bool):
            raise ValueError(f"threshold['step'] is {step!r}: it must be a number, for example 0.003.")
        return Threshold(LinearThreshold(_check(threshold["start"], "threshold['start']"), float(step)))
    nested = set(threshold) == {"layers"} and isinstance(threshold["layers"], Mapping)
    patterns = threshold["layers"] if nested else threshold
    return Threshold({pattern: _check(value, f"threshold[{pattern!r}]") for pattern, value in patterns.items()})


def _check(value: object, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
        raise ValueError(f"{name} is {value!r}: a threshold lies in (0, 1], for example 0.97.")
    return float(value)
