"""Finds inputs, labels and tasks among named columns: of a row that is a dict, of an `.npz` file, of a saved dataset."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from .errors import DataError


class Column(NamedTuple):
    """A column that is looked for: the option that names it, and the names it usually has."""

    option: str
    usual: tuple[str, ...]


INPUTS = Column("x", ("x", "image", "images", "img", "pixel_values", "input_ids", "features", "data"))
LABELS = Column("y", ("y", "label", "labels", "target", "targets", "class"))
TASKS = Column("task", ("task", "tasks", "task_id"))


class Names(NamedTuple):
    """The names that the user gives for the columns; None for the usual ones."""

    x: str | None = None
    y: str | None = None
    task: str | None = None


def pick(columns: Iterable[str], column: Column, where: str, name: str | None = None) -> str:
    """Returns the one of `columns` that is called `name`, or that has one of the usual names.

    Raises:
        DataError: no such column exists, or several do.
    """
    there = list(columns)
    found = [each for each in there if each in ((name,) if name else column.usual)]
    if len(found) == 1:
        return found[0]
    shown = ", ".join(found or there) or "nothing"
    if name:
        raise DataError(f"{where}: {column.option}={name}: there is no such column. There are {shown}.")
    if found:
        raise DataError(f"{where}: {shown} could all be {column.option}. Choose one: --set stream.{column.option}=…")
    raise DataError(
        f"{where}: no column is called {', '.join(column.usual)}; there are {shown}. Name it: "
        f"--set stream.{column.option}=…"
    )


def pick_task(columns: Iterable[str], where: str, name: str | None) -> str | None:
    """Returns the column that names the task of each example; None if there is no such column."""
    there = list(columns)
    return pick(there, TASKS, where, name) if name or not set(TASKS.usual).isdisjoint(there) else None


def as_values(column: Any, count: int, where: str, what: str) -> Any:
    """Returns one whole number or name per example.

    Raises:
        DataError: the column holds something else, or another number of values.
    """
    values = np.asarray(column)
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if values.ndim != 1 or values.dtype.kind not in "iubU":
        kind = f"{values.dtype} of shape {values.shape}"
        raise DataError(f"{where}: {what} is {kind}; expected one whole number or name per example.")
    if len(values) != count:
        raise DataError(f"{where}: {count} examples, but {len(values)} values of {what}.")
    return values
