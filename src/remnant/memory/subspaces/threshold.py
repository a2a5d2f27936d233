"""Options by layer name, with `*` for any text, and the one that the paper needs: the threshold ε (Sec. C.5)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from numbers import Real
from typing import Any, TypeVar

from remnant.errors import did_you_mean, nearest

ThresholdFunction = Callable[[str, int], float]  # (layer name, task index) → ε
ThresholdSetting = float | Mapping[str, Any] | ThresholdFunction
Value = TypeVar("Value")


def by_layer(patterns: Mapping[str, Value], layers: Iterable[str], option: str) -> dict[str, Value]:
    """Gives each layer the value of the first pattern that matches its name.

    Args:
        patterns: Values by name pattern.
        layers: The names of all layers.
        option: The name of the option, for error messages.

    Returns:
        Values by layer name, without the layers that no pattern matches.

    Raises:
        ValueError: If a pattern matches no layer.

    Example:
        >>> by_layer({"conv*": 0.95, "*": 0.99}, ["conv1", "fc1"], "threshold")
        {'conv1': 0.95, 'fc1': 0.99}
    """
    layers = list(layers)
    for pattern in patterns:
        check_matches(pattern, layers, f"{option}[{pattern!r}] matches no layer.")
    found = {
        layer: [pattern for pattern in patterns if layer == pattern or fnmatchcase(layer, pattern)] for layer in layers
    }
    return {layer: patterns[matching[0]] for layer, matching in found.items() if matching}


def check_matches(pattern: str, names: list[str], message: str) -> None:
    """Refuses a pattern that matches no name, because it is probably a typing error."""
    if pattern not in names and not any(fnmatchcase(name, pattern) for name in names):  # a name may contain brackets
        short = len(names) <= 10 or nearest(pattern, names)
        choices = names if short else {name.split(".")[0] for name in names}
        raise ValueError(f"{message} {did_you_mean(pattern, choices)}")


@dataclass(frozen=True)
class Threshold:
    """ε by layer and task, and the `setting` that a saved memory keeps: None for a function, which no file can hold."""

    setting: Any
    of: ThresholdFunction


def parse_threshold(threshold: ThresholdSetting, layers: Iterable[str]) -> Threshold:
    """Reads a threshold ε in any of its forms, for these layers.

    Args:
        threshold: A number or `{"value": ε}` for all layers and tasks; `{"start": ε₀, "step": δ}` for ε₀ + δ·t, at most 1, in
            task t = 0, 1, …; `{pattern: ε}` or `{"layers": {pattern: ε}}` by layer name; or a function (layer, task) → ε.
        layers: The names of the layers.

    Raises:
        ValueError: If a value is not in (0, 1], or a layer has none.

    Example:
        >>> epsilon = parse_threshold({"start": 0.97, "step": 0.003}, ["fc1"]).of
        >>> epsilon("fc1", 2)
        0.976
    """
    if callable(threshold):
        function = threshold
        return Threshold(None, lambda layer, task: _check(function(layer, task), f"threshold({layer!r}, {task})"))
    if not isinstance(threshold, Mapping):
        threshold = {"value": threshold}
    if set(threshold) == {"value"}:
        value = _check(threshold["value"], "threshold")
        return Threshold(value, lambda layer, task: value)
    if "start" in threshold and set(threshold) <= {"start", "step"}:
        start, step = _check(threshold["start"], "threshold['start']"), threshold.get("step", 0.0)
        if not isinstance(step, int | float) or isinstance(step, bool):
            raise ValueError(f"threshold['step'] is {step!r}: it must be a number, for example 0.003.")
        setting = {"start": start, "step": float(step)} if step else start
        return Threshold(
            setting, lambda layer, task: _check(min(1.0, start + step * task), f"threshold({layer!r}, {task})")
        )
    nested = set(threshold) == {"layers"} and isinstance(threshold["layers"], Mapping)
    patterns = threshold["layers"] if nested else threshold
    checked = {pattern: _check(value, f"threshold[{pattern!r}]") for pattern, value in patterns.items()}
    layers = list(layers)
    values = by_layer(checked, layers, "threshold")
    if missing := [layer for layer in layers if layer not in values]:
        raise ValueError(f"No threshold pattern matches layer {missing[0]!r}. Add one, or '*' for all others.")
    return Threshold({"layers": checked}, lambda layer, task: values[layer])


def _check(value: object, name: str) -> float:
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 < float(value) <= 1:
        raise ValueError(f"{name} is {value!r}: a threshold lies in (0, 1], for example 0.97.")
    return float(value)
