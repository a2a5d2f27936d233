"""A user's own stream, from arrays or from torch Datasets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from .errors import DataError
from .seeding import Rows, generator, held_out
from .stream import CPU, Head, Split, Stream, Task

ArrayLike = Tensor | NDArray[Any]
Pair = tuple[ArrayLike, ArrayLike]
Examples = TorchDataset[tuple[ArrayLike, int]]


def from_arrays(
    train: Sequence[Pair],
    test: Sequence[Pair] | float = 0.2,
    *,
    valid: Sequence[Pair] | float = 0.0,
    head: Head = "multi",
    classes: int | Sequence[int] | None = None,
    relabel: bool = False,
    names: Sequence[str] | None = None,
    name: str = "arrays",
    seed: int = 0,
) -> Stream:
    """One `(x, y)` per task. `test` and `valid` are given alike, or as the share of `train` to hold out (by `seed`).

    Bytes (uint8) become numbers from 0 to 1; floating numbers become float32; int64 stays, for tokens. Images are
    channels first. In a multi-head stream each task's labels count from 0 (`relabel=True` makes them so); in a
    single-head one they number the one head's outputs. `classes` fixes the head sizes instead of reading them off.
    """
    parts = {"train": [_Given.of(pair, f"task {n}, train") for n, pair in enumerate(train, 1)]}
    for part, value in (("test", test), ("valid", valid)):
        if not isinstance(value, float | int):
            parts[part] = [_Given.of(pair, f"task {n}, {part}") for n, pair in enumerate(value, 1)]
    shares = {p: float(v) for p, v in (("test", test), ("valid", valid)) if isinstance(v, float | int)}
    if relabel:
        _relabel(parts, head)
    return _assemble(parts, shares, head, classes, names, name, seed)


def from_datasets(
    train: Sequence[Examples],
    test: Sequence[Examples],
    *,
    valid: Sequence[Examples] | float = 0.0,
    head: Head = "multi",
    classes: int | Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    name: str = "datasets",
    seed: int = 0,
) -> Stream:
    """One torch Dataset of `(x, label)` per task. With `classes` given a Dataset is read when its task is first used;
    without, all are read now to find the labels. `valid` is given alike, or as the share of `train` to hold out.
    """
    lists: dict[str, Sequence[Examples]] = {"train": train, "test": test}
    shares = {}
    if isinstance(valid, float | int):
        shares["valid"] = float(valid)
    else:
        lists["valid"] = valid
    parts = {p: [_Given.gathered(d, f"task {n}, {p}") for n, d in enumerate(each, 1)] for p, each in lists.items()}
    return _assemble(parts, shares, head, classes, names, name, seed)


@dataclass
class _Given:
    """Examples someone brought: their number and one example's form now, the rest when asked for."""

    where: str
    size: int
    shape: tuple[int, ...]
    tokens: bool
    x: Callable[[], Tensor]
    y: Callable[[], Tensor]
    head: int | None = None  # labels must lie below it; set once the heads are known
    original: tuple[int, ...] | None = None

    @classmethod
    def of(cls, pair: Pair, where: str) -> "_Given":
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise DataError(f"{where}: expected a pair (x, y), got {type(pair).__name__}.")
        x, y = torch.as_tensor(pair[0]), _labels(pair[1], where)
        if x.ndim < 2:
            raise DataError(f"{where}: x has shape {tuple(x.shape)}; expected one row, or one image, per example.")
        if len(x) != len(y):
            raise DataError(f"{where}: {len(x)} examples but {len(y)} labels.")
        return cls(where, len(y), tuple(x.shape[1:]), x.dtype == torch.int64, lambda: x, lambda: y)

    @classmethod
    def gathered(cls, dataset: Examples, where: str) -> "_Given":
        if not hasattr(dataset, "__len__"):
            raise DataError(f"{where}: {type(dataset).__name__} has no length; only map-style Datasets can be used.")
        size = len(dataset)
        if size == 0:
            return cls(where, 0, (), False, lambda: torch.empty(0), lambda: torch.empty(0, dtype=torch.int64))

        def example(i: int) -> tuple[Tensor, Any]:
            item = dataset[i]
            if not isinstance(item, tuple | list) or len(item) != 2:
                raise DataError(f"{where}: example {i} is no pair (x, label).")
            if not isinstance(item[0], Tensor | np.ndarray):
                kind = type(item[0]).__name__
                raise DataError(f"{where}: example {i} is a {kind}; give the Dataset a transform that makes tensors.")
            return torch.as_tensor(item[0]), item[1]

        first = example(0)[0]

        @cache
        def all_of_them() -> tuple[Tensor, Tensor]:
            examples = [example(i) for i in range(size)]
            for i, (x, _) in enumerate(examples):
                if x.shape != first.shape:
                    raise DataError(f"{where}: example {i} has shape {tuple(x.shape)}, the first {tuple(first.shape)}.")
            return torch.stack([x for x, _ in examples]), _labels(np.array([int(y) for _, y in examples]), where)

        tokens = first.dtype == torch.int64
        return cls(where, size, tuple(first.shape), tokens, lambda: all_of_them()[0], lambda: all_of_them()[1])

    def renumber(self, y: Tensor, original: tuple[int, ...]) -> None:
        self.y, self.original = lambda: y, original

    def labels(self) -> Tensor:
        y = self.y()
        if self.head is not None and len(y) and (int(y.min()) < 0 or int(y.max()) >= self.head):
            wrong = int(y.min()) if int(y.min()) < 0 else int(y.max())
            raise DataError(f"{self.where}: label {wrong} lies outside the head, whose labels are 0 … {self.head - 1}.")
        return y

    def split(self, rows: Rows | None = None) -> Split:
        """The examples, or those in `rows`."""
        chosen = None if rows is None else torch.from_numpy(rows)

        def x(device: torch.device) -> Tensor:
            self.labels()  # a wrong label is told before it reaches a loss
            values = self.x()
            return _as_numbers((values if chosen is None else values[chosen.to(values.device)]).to(device))

        def y() -> Tensor:
            return (self.labels() if chosen is None else self.labels()[chosen]).to(CPU)

        return Split(self.size if rows is None else len(rows), x, y)


def _labels(y: Any, where: str) -> Tensor:
    labels = torch.as_tensor(y)
    if labels.ndim != 1:
        raise DataError(f"{where}: labels have shape {tuple(labels.shape)}; expected one whole number per example.")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise DataError(f"{where}: labels are {labels.dtype}; expected whole numbers.")
    return labels.to(torch.int64)


def _as_numbers(x: Tensor) -> Tensor:
    if x.dtype == torch.uint8:
        return x.to(torch.float32).mul_(1 / 255)
    return x if x.dtype == torch.int64 else x.to(torch.float32)


def _relabel(parts: dict[str, list[_Given]], head: Head) -> None:
    """Numbers classes from 0 in sorted order: each task's own in a multi-head stream, all together in a single-head one."""
    count = len(parts["train"])
    groups = [range(count)] if head == "single" else [range(t, t + 1) for t in range(count)]
    for group in groups:
        members = [given for each in parts.values() for t in group for given in each[t : t + 1]]
        known = torch.unique(torch.cat([given.y() for given in members]))
        for given in members:
            given.renumber(torch.searchsorted(known, given.y()), tuple(int(k) for k in known))


def _assemble(
    parts: dict[str, list[_Given]],
    shares: dict[str, float],
    head: Head,
    classes: int | Sequence[int] | None,
    names: Sequence[str] | None,
    name: str,
    seed: int,
) -> Stream:
    train = parts["train"]
    if not train:
        raise DataError("A stream needs at least one task.")
    if head not in ("single", "multi"):
        raise DataError(f"head={head!r}: a stream's head is 'single' or 'multi'.")
    for part, each in parts.items():
        if len(each) != len(train):
            raise DataError(f"{len(train)} tasks have train examples but {len(each)} have {part} ones.")
    for given in (g for each in parts.values() for g in each):
        if given.size == 0 and "valid" not in given.where:
            raise DataError(f"{given.where}: there are no examples.")
        if given.size and (given.shape != train[0].shape or given.tokens != train[0].tokens):
            raise DataError(
                f"{given.where}: an example has shape {given.shape}, but in {train[0].where} {train[0].shape}."
            )
    if names is not None and len(names) != len(train):
        raise DataError(f"{len(names)} names for {len(train)} tasks.")
    sizes = _head_sizes(train, head, classes)
    tasks = []
    for t in range(len(train)):
        for each in parts.values():
            each[t].head = sizes[0] if head == "single" else sizes[t]
            if classes is None:
                each[t].labels()
        splits = _held_out({p: each[t] for p, each in parts.items()}, shares, seed, t)
        outputs = sizes[t] if head == "multi" else len(torch.unique(train[t].y())) if classes is None else sizes[0]
        known = train[t].original or tuple(range(sizes[0] if head == "single" else outputs))
        title = names[t] if names is not None else f"task {t + 1}"
        tasks.append(Task(title, outputs, splits["train"], splits["valid"], splits["test"], known))
    return Stream(name, tuple(tasks), head, train[0].shape, sizes, seed)


def _head_sizes(train: list[_Given], head: Head, classes: int | Sequence[int] | None) -> tuple[int, ...]:
    if classes is not None:
        sizes = (classes,) * (1 if head == "single" else len(train)) if isinstance(classes, int) else tuple(classes)
        if len(sizes) != (1 if head == "single" else len(train)) or any(size < 1 for size in sizes):
            raise DataError(f"classes={classes!r}: expected one head size, or one per task of a multi-head stream.")
        return sizes
    if head == "single":
        return (max(int(given.y().max()) for given in train) + 1,)
    inferred = []
    for given in train:
        known = torch.unique(given.y())
        if len(known) > 1 and not torch.equal(known, torch.arange(len(known))):
            shown = ", ".join(str(int(k)) for k in known[:6]) + (", …" if len(known) > 6 else "")
            raise DataError(
                f"{given.where}: labels {shown} lie outside a head of {len(known)} classes, whose labels are "
                f"0 … {len(known) - 1}. Pass relabel=True (arrays) to number each task's classes from 0, or classes=… ."
            )
        inferred.append(len(known))
    return tuple(inferred)


def _held_out(given: dict[str, _Given], shares: dict[str, float], seed: int, task: int) -> dict[str, Split]:
    """The three splits of a task; what was not given is held out of train."""
    wanted = {part: held_out(given["train"].size, share, part) for part, share in shares.items()}
    splits = {part: each.split() for part, each in given.items()}
    if any(wanted.values()):
        rows = generator(seed, "held out", task).permutation(given["train"].size)
        for part, count in wanted.items():
            splits[part], rows = given["train"].split(rows[:count]), rows[count:]
        splits["train"] = given["train"].split(rows)
    for part in wanted:
        splits.setdefault(part, given["train"].split(np.arange(0)))
    return splits
