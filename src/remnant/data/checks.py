"""Checks of option values: what arrives may come from a command line or a settings file."""

from collections.abc import Sequence
from typing import Any

from .errors import DataError, did_you_mean


def whole(option: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise DataError(f"{option}={value!r}: expected a whole number from {low} to {high}.")
    return value


def number(option: str, value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise DataError(f"{option}={value!r}: expected a number from {low:g} to {high:g}.")
    return float(value)


def share(option: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise DataError(f"{option}={value!r}: expected a share of the training examples, from 0 to under 1.")
    return float(value)


def one_of(option: str, value: Any, choices: Sequence[str]) -> str:
    if value not in choices:
        raise DataError(f"{option}={value!r}: {did_you_mean(str(value), choices)} It can be {' or '.join(choices)}.")
    return str(value)


def class_counts(tasks: Any, sizes: Any, classes: int) -> list[int]:
    """Classes per task: `classes` in `tasks` equal parts, or as listed in `sizes`."""
    if sizes is None:
        tasks = whole("tasks", tasks, 1, classes // 2)
        if classes % tasks:
            raise DataError(
                f"tasks={tasks}: {classes} classes do not part into {tasks} equal tasks. "
                "Say how many classes each task has: sizes=[…], on the command line --set stream.sizes=[…]."
            )
        return [classes // tasks] * tasks
    if isinstance(sizes, str) or not isinstance(sizes, Sequence) or not sizes:
        raise DataError(f"sizes={sizes!r}: expected a list with the number of classes of each task.")
    counts = [whole("sizes", size, 2, classes) for size in sizes]
    if sum(counts) > classes:
        raise DataError(f"sizes={list(sizes)}: they ask for {sum(counts)} classes, and there are {classes}.")
    return counts
