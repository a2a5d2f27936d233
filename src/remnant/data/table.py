"""Divides tables of labelled examples into tasks: by a column that names the task, or by groups of classes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .errors import DataError
from .stream import ClassOrder, Head, Split, Stream, Task
from .task_builder import Rows, as_inputs, hold_out, ordered_classes

PARTS = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}
Values = NDArray[np.generic]  # whole numbers or names


@dataclass(frozen=True)
class Table:
    """The examples of one part of a stream: train, valid or test."""

    where: str  # for error messages
    y: Values
    task: Values | None
    read: Callable[[Rows], Tensor]  # the inputs of these rows


@dataclass(frozen=True)
class Division:
    """How tables become a stream; see `remnant.data.on_disk.stream_on_disk`."""

    tasks: int | None
    class_order: ClassOrder
    head: Head
    test: float
    valid: float
    seed: int

    def stream(self, name: str, parts: Mapping[str, Table]) -> Stream:
        """The stream of these parts. A missing test or valid part is held out of train."""
        if "train" not in parts:
            raise DataError(f"{name} has no train part, only {', '.join(parts)}.")
        train = parts["train"]
        shape = _shape(parts)
        for table in parts.values():
            _refuse_unknown(table.where, "class", table.y, train.y, train.where)
            if table.task is not None and train.task is not None:
                _refuse_unknown(table.where, "task", table.task, train.task, train.where)
        classes = np.unique(train.y)
        groups = list(self._groups(train, classes))
        tasks = []
        for number, (title, members) in enumerate(groups):
            rows = {part: np.flatnonzero(members(table)) for part, table in parts.items()}
            own = np.unique(train.y[rows["train"]])
            outputs = classes if self.head == "single" else own
            splits = {}
            for part, (table, chosen) in self._held_out(parts, rows, number).items():
                _refuse_unknown(table.where, "class", table.y[chosen], own, f"the train part of '{title}'")
                splits[part] = _split(table, chosen, outputs)
            # Classes with a name have the number of their place in sorted order.
            labels = own if own.dtype.kind in "iu" else np.searchsorted(classes, own)
            tasks.append(Task(title, len(own), **splits, labels=tuple(labels.tolist())))
        sizes = (len(classes),) if self.head == "single" else tuple(task.classes for task in tasks)
        return Stream(name, tuple(tasks), self.head, shape, sizes, self.seed)

    def _groups(self, train: Table, classes: Values) -> Iterator[tuple[str, Callable[[Table], NDArray[np.bool_]]]]:
        """The title of each task, and a function that finds its examples in a table."""
        if train.task is not None:
            if self.tasks is not None:
                raise DataError(f"tasks={self.tasks}: {train.where} already says which task an example belongs to.")
            for value in np.unique(train.task):
                title = str(value) if train.task.dtype.kind == "U" else f"task {value}"
                yield title, lambda table, value=value: table.task == value  # type: ignore[misc]
            return
        if self.tasks is None or self.tasks > len(classes):
            given = "" if self.tasks is None else f", too few for tasks={self.tasks}"
            raise DataError(
                f"{train.where} has {len(classes)} classes{given}. Say how many tasks they make: --set stream.tasks="
                f"{max(len(classes) // 2, 1)}, for example."
            )
        order = ordered_classes(len(classes), self.class_order, self.seed)
        for group in np.array_split(classes[order], self.tasks):
            title = ", ".join(map(str, group[:4])) + ", …" * (len(group) > 4)
            yield title, lambda table, group=group: np.isin(table.y, group)  # type: ignore[misc]

    def _held_out(
        self, parts: Mapping[str, Table], rows: Mapping[str, Rows], number: int
    ) -> dict[str, tuple[Table, Rows]]:
        """The table and rows of each part of a task."""
        chosen = {part: (table, rows[part]) for part, table in parts.items()}
        table, train = chosen["train"]
        if "test" not in parts:
            train, test = hold_out(train, self.test, self.seed, number, "test")
            chosen["test"] = table, test
        if not len(rows.get("valid", ())):
            train, valid = hold_out(train, self.valid, self.seed, number)
            chosen["valid"] = table, valid
        return {**chosen, "train": (table, train)}


def _shape(parts: Mapping[str, Table]) -> tuple[int, ...]:
    """The shape of one example, which is the same in all parts."""
    train = parts["train"]
    for table in (train, *parts.values()):
        if not len(table.y):
            raise DataError(f"{table.where} has no examples.")
    shapes = {part: tuple(table.read(np.arange(1)).shape[1:]) for part, table in parts.items()}
    for part, table in parts.items():
        if shapes[part] != shapes["train"]:
            raise DataError(
                f"{table.where}: an example has shape {shapes[part]}, but in {train.where} {shapes['train']}."
            )
        if (table.task is None) != (train.task is None):
            raise DataError(f"{table.where} and {train.where}: only one of them says which task an example belongs to.")
    if not shapes["train"]:
        raise DataError(f"{train.where}: an example is a single number; expected a row of numbers or an image.")
    return shapes["train"]


def _refuse_unknown(where: str, what: str, values: Values, known: Values, there: str) -> None:
    for unknown in np.setdiff1d(values, known)[:1]:
        raise DataError(f"{where} has the {what} '{unknown}', which {there} does not have.")


def _split(table: Table, rows: Rows, outputs: Values) -> Split:
    """A split of some rows; `outputs` are the classes of the head in the order of its outputs."""
    return Split(
        len(rows),
        lambda device: as_inputs(table.read(rows).to(device)),
        lambda: torch.from_numpy(np.searchsorted(outputs, table.y[rows])),
    )
