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

    def for_layers(self, layers: Iterable[str]) -> ThresholdFunction:
        return lambda layer, task: _check(min(1.0, self.start + self.step * task), f"threshold({layer!r}, {task})")

    @property
    def setting(self) -> float | dict[str, float]:
        """The form in which a saved memory keeps it; `parse_threshold` reads it back."""
        return {"start": self.start, "step": self.step} if self.step else self.start


@dataclass(frozen=True)
class LayerThreshold:
    """One ε per pattern of layer names; the first pattern that matches a layer counts."""

    patterns: dict[str, float]

    def for_layers(self, layers: Iterable[str]) -> ThresholdFunction:
        layers = list(layers)
        values = by_layer(self.patterns, layers, "threshold")
        for layer in layers:
            if layer not in values:
                raise ValueError(f"No threshold pattern matches layer {layer!r}. Add one, or '*' for all other layers.")
        return lambda layer, task: values[layer]

    @property
    def setting(self) -> dict[str, dict[str, float]]:
        return {"layers": self.patterns}


@dataclass(frozen=True)
class CustomThreshold:
    """A function of the user's. A saved memory cannot keep it."""

    function: ThresholdFunction
    setting: None = None

    def for_layers(self, layers: Iterable[str]) -> ThresholdFunction:
        return lambda layer, task: _check(self.function(layer, task), f"threshold({layer!r}, {task})")


Threshold = LinearThreshold | LayerThreshold | CustomThreshold


def parse_threshold(threshold: ThresholdSetting) -> Threshold:
    """Reads every form in which ε can be given.

    Args:
        threshold: ε for all layers and tasks as a number or `{"value": ε}`; `{"start": ε₀, "step": δ}` for ε₀ + δ·t; one ε
            per pattern of layer names as `{pattern: ε}` or `{"layers": {pattern: ε}}`; or a function (layer, task) → ε.

    Returns:
        A threshold. Its `for_layers(names)` gives the function (layer, task) → ε.

    Raises:
        ValueError: If a value is not in (0, 1].

    Example:
        >>> epsilon = parse_threshold({"start": 0.97, "step": 0.003}).for_layers(["fc1"])
        >>> epsilon("fc1", 2)
        0.976
    """
    if callable(threshold):
        return CustomThreshold(threshold)
    if not isinstance(threshold, Mapping):
        return LinearThreshold(_check(threshold, "threshold"))
    if set(threshold) == {"value"}:
        return LinearThreshold(_check(threshold["value"], "threshold"))
    if "start" in threshold and set(threshold) <= {"start", "step"}:
        step = threshold.get("step", 0.0)
        if not isinstance(step, int | float) or isinstance(step, bool):
            raise ValueError(f"threshold['step'] is {step!r}: it must be a number, for example 0.003.")
        return LinearThreshold(_check(threshold["start"], "threshold['start']"), float(step))
    named = set(threshold) == {"layers"} and isinstance(threshold["layers"], Mapping)
    patterns = threshold["layers"] if named else threshold
    return LayerThreshold({pattern: _check(value, f"threshold[{pattern!r}]") for pattern, value in patterns.items()})


def _check(value: object, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
        raise ValueError(f"{name} is {value!r}: a threshold lies in (0, 1], for example 0.97.")
    return float(value)
