"""Builds a user's own stream from arrays or torch Datasets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from .columns import pick
from .errors import DataError
from .stream import CPU, Head, Split, Stream, Task
from .task_builder import Rows, as_inputs, generator, held_out_count

ArrayLike = Tensor | NDArray[Any]
Pair = tuple[ArrayLike, ArrayLike]
TorchExamples = TorchDataset[tuple[ArrayLike, int]]
T = TypeVar("T")
MOST_CLASSES = 1_000_000  # of one head


@dataclass
class Examples:
    """The examples of one part of one task. Their number and shape are known; `read` gives the tensors x and y."""

    where: str  # for error messages
    size: int
    shape: tuple[int, ...]
    read: Callable[[], tuple[Tensor, Tensor]]
    outputs: int | None = None  # of the head, once it is known; labels must lie below it
    original: Tensor | None = None  # sorted labels, which are numbered from 0 instead

    def y(self) -> Tensor:
        y = self.read()[1]
        y = y if self.original is None else torch.searchsorted(self.original, y)
        if self.outputs is not None and len(wrong := y[(y < 0) | (y >= self.outputs)]):
            raise DataError(
                f"{self.where}: label {int(wrong[0])} lies outside the head, whose labels are 0 … {self.outputs - 1}."
            )
        return y

    def split(self, rows: Rows | None = None) -> Split:
        """A split of all examples, or of the given rows."""
        chosen = slice(None) if rows is None else torch.from_numpy(rows)

        def x(device: torch.device) -> Tensor:
            self.y()  # refuses a wrong label before it reaches a loss
            return as_inputs(self.read()[0][chosen].to(device))

        return Split(self.size if rows is None else len(rows), x, lambda: self.y()[chosen].to(CPU))


Parts = dict[str, list[Examples]]  # train, and test and valid where given; one entry per task


def make_stream(
    read: Callable[[T, str], Examples],
    given: dict[str, Sequence[T] | float],
    head: Head,
    classes: int | Sequence[int] | None,
    names: Sequence[str] | None,
    name: str,
    seed: int,
    relabel: bool = False,
) -> Stream:
    """Builds the stream of `given` train, test and valid parts.

    A part is one item per task, which `read` turns into Examples, or the share of train to hold out.
    """
    parts, shares = Parts(), {}
    for part, value in given.items():
        if isinstance(value, float | int):
            shares[part] = float(value)
        else:
            parts[part] = [read(each, f"task {n}, {part}") for n, each in enumerate(value, 1)]
    train = parts["train"]
    names = [f"task {t}" for t in range(1, len(train) + 1)] if names is None else names
    _check(parts, names)
    if relabel:
        _relabel(parts, head)
    sizes = _head_sizes(train, head, classes)
    if max(sizes) > MOST_CLASSES:
        raise DataError(f"A head of {max(sizes):,} classes is too large. Number the classes from 0 (relabel=True).")
    tasks = []
    for t, (title, examples) in enumerate(zip(names, train, strict=True)):
        outputs = sizes[0] if head == "single" else sizes[t]
        for each in parts.values():
            each[t].outputs = outputs
            if classes is None:
                each[t].y()
        splits = _splits({part: each[t] for part, each in parts.items()}, shares, seed, t)
        count = len(torch.unique(examples.y())) if head == "single" and classes is None else outputs
        labels = range(outputs) if examples.original is None else examples.original.tolist()
        tasks.append(Task(title, count, **splits, labels=tuple(labels)))
    return Stream(name, tuple(tasks), head, train[0].shape, sizes, seed)


def from_pair(pair: Pair, where: str) -> Examples:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise DataError(f"{where}: expected a pair (x, y), got {type(pair).__name__}.")
    x, y = map(torch.as_tensor, pair)
    if x.ndim < 2:
        raise DataError(f"{where}: x has shape {tuple(x.shape)}; expected one row, or one image, per example.")
    if y.ndim != 1:
        raise DataError(f"{where}: labels have shape {tuple(y.shape)}; expected one whole number per example.")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise DataError(f"{where}: labels are {y.dtype}; expected whole numbers.")
    if len(x) != len(y):
        raise DataError(f"{where}: {len(x)} examples but {len(y)} labels.")
    return Examples(where, len(y), tuple(x.shape[1:]), lambda: (x, y.to(torch.int64)))


def from_dataset(dataset: TorchExamples, where: str) -> Examples:
    if not hasattr(dataset, "__len__"):
        raise DataError(f"{where}: {type(dataset).__name__} has no length; only map-style Datasets can be used.")

    def example(i: int) -> tuple[Tensor, int]:
        item: Any = dataset[i]
        if isinstance(item, Mapping):
            item = tuple(item[pick(item, option, f"{where}: example {i}")] for option in ("x", "y"))
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"{where}: example {i} is not a pair (x, label), nor a dict with both.")
        if not isinstance(item[0], Tensor | np.ndarray):
            kind = type(item[0]).__name__
            raise DataError(f"{where}: example {i} is a {kind}; give the Dataset a transform that makes tensors.")
        return torch.as_tensor(item[0]), int(item[1])

    size = len(dataset)
    first = example(0)[0] if size else torch.empty(1)
    if not first.ndim:
        raise DataError(f"{where}: example 0 is a single number; expected a row of numbers or an image.")

    @cache
    def read() -> tuple[Tensor, Tensor]:
        examples = [example(i) for i in range(size)]
        for i, (x, _) in enumerate(examples):
            if x.shape != first.shape:
                raise DataError(f"{where}: example {i} has shape {tuple(x.shape)}, the first {tuple(first.shape)}.")
        x = torch.stack([x for x, _ in examples]) if examples else first
        return x, torch.tensor([y for _, y in examples], dtype=torch.int64)

    return Examples(where, size, tuple(first.shape), read)


def _check(parts: Parts, names: Sequence[str]) -> None:
    train = parts["train"]
    if not train:
        raise DataError("A stream needs at least one task.")
    if len(names) != len(train):
        raise DataError(f"{len(names)} names for {len(train)} tasks.")
    for part, each in parts.items():
        if len(each) != len(train):
            raise DataError(f"{len(train)} tasks have train examples but {len(each)} have {part} ones.")
        for examples in each:
            if examples.size == 0 and part != "valid":
                raise DataError(f"{examples.where}: there are no examples.")
            if examples.size and examples.shape != train[0].shape:
                raise DataError(
                    f"{examples.where}: an example has shape {examples.shape}, but in {train[0].where} {train[0].shape}."
                )


def _relabel(parts: Parts, head: Head) -> None:
    """Numbers classes from 0 in sorted order: per task in a multi-head stream, over all tasks in a single-head one."""
    tasks = list(zip(*parts.values(), strict=True))
    for members in [tuple(chain(*tasks))] if head == "single" else tasks:
        classes = torch.unique(torch.cat([examples.y() for examples in members]))
        for examples in members:
            examples.original = classes


def _head_sizes(train: list[Examples], head: Head, classes: int | Sequence[int] | None) -> tuple[int, ...]:
    if classes is not None:
        heads = 1 if head == "single" else len(train)
        sizes = (classes,) * heads if isinstance(classes, int) else tuple(classes)
        if len(sizes) != heads or any(size < 1 for size in sizes):
            raise DataError(f"classes={classes!r}: expected one head size, or one per task of a multi-head stream.")
        return sizes
    if head == "single":
        return (max(int(examples.y().max()) for examples in train) + 1,)
    inferred = []
    for examples in train:
        found = torch.unique(examples.y()).tolist()
        if len(found) > 1 and found != list(range(len(found))):
            shown = ", ".join(map(str, found[:6])) + (", …" if len(found) > 6 else "")
            raise DataError(
                f"{examples.where}: labels {shown} lie outside a head of {len(found)} classes, whose labels are "
                f"0 … {len(found) - 1}. Pass relabel=True to number each task's classes from 0, or classes=… ."
            )
        inferred.append(len(found))
    return tuple(inferred)


def _splits(given: dict[str, Examples], shares: dict[str, float], seed: int, task: int) -> dict[str, Split]:
    """The splits of a task; a part that was not given is a random share of train."""
    train, held = given["train"], 0
    order = generator(seed, "held out", task).permutation(train.size)
    splits = {part: examples.split() for part, examples in given.items()}
    for part, share in shares.items():
        count = held_out_count(train.size, share, part)
        splits[part], held = train.split(order[held : held + count]), held + count
    if held:
        splits["train"] = train.split(order[held:])
    return splits
