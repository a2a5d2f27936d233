"""Builds a user's own stream from arrays, torch Datasets or a folder of images, `taskNN/{train,test}/CLASS/…`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from .errors import DataError
from .sets.image_formats import class_folders, decode
from .stream import CPU, Head, Split, Stream, Task
from .task_builder import Rows, generator, held_out_count, hold_out, normalise

ArrayLike = Tensor | NDArray[Any]
Pair = tuple[ArrayLike, ArrayLike]
TorchExamples = TorchDataset[tuple[ArrayLike, int]]
Size = tuple[int, int]  # height, width
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
            values = self.read()[0][chosen].to(device)
            if values.dtype == torch.uint8:
                return values.to(torch.float32).mul_(1 / 255)
            return values if values.dtype == torch.int64 else values.to(torch.float32)

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
        item = dataset[i]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"{where}: example {i} is not a pair (x, label).")
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
                f"0 … {len(found) - 1}. Pass relabel=True (arrays) to number each task's classes from 0, or classes=… ."
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


def from_folder(
    path: str | PathLike[str], head: Head, size: Size | None, valid: float, name: str | None, seed: int
) -> Stream:
    """See `Stream.from_folder`."""
    root = Path(path).expanduser()
    folders = sorted(p for p in root.glob("*") if p.is_dir() and p.name.lower().startswith("task"))
    if not folders:
        raise DataError(f"{root} has no folders task01, task02, … with train/CLASS/ and test/CLASS/ of images in each.")
    found = [_classes_by_part(folder) for folder in folders]
    file = next(iter(found[0]["train"].values()))[0]
    first = decode(file.read_bytes(), file, None, size)
    shape = (1 if first.ndim == 2 else 3, first.shape[0], first.shape[1])
    all_classes = sorted({each for parts in found for each in parts["train"]})
    tasks = []
    for number, (folder, parts) in enumerate(zip(folders, found, strict=True)):
        own = sorted(parts["train"])
        outputs = {each: i for i, each in enumerate(all_classes if head == "single" else own)}
        images = {part: [(f, outputs[c]) for c, files in parts[part].items() for f in files] for part in parts}
        if not images["valid"]:
            train, held = hold_out(np.arange(len(images["train"])), valid, seed, number)
            images["valid"] = [images["train"][i] for i in held]
            images["train"] = [images["train"][i] for i in train]
        splits = {part: _image_split(each, shape, size) for part, each in images.items()}
        tasks.append(Task(folder.name, len(own), **splits, labels=tuple(outputs[each] for each in own)))
    sizes = (len(all_classes),) if head == "single" else tuple(task.classes for task in tasks)
    return Stream(name or root.name, tuple(tasks), head, shape, sizes, seed)


def _classes_by_part(folder: Path) -> dict[str, dict[str, list[Path]]]:
    """Part → class → its images, for the train, valid and test folders of a task."""
    parts = {}
    for part in ("train", "valid", "test"):
        under = folder / part
        names = sorted(p.relative_to(under).as_posix() for p in under.rglob("*") if p.is_file())
        parts[part] = {name: [under / file for file in files] for name, files in class_folders(names).items()}
        if not parts[part] and part != "valid":
            raise DataError(f"{under} has no folders of images, one per class.")
        if unknown := sorted(parts[part].keys() - parts["train"].keys()):
            raise DataError(f"{under} has the class '{unknown[0]}', which {folder / 'train'} does not have.")
    return parts


def _image_split(images: list[tuple[Path, int]], shape: tuple[int, int, int], size: Size | None) -> Split:
    """A split of image files with their labels."""
    channels, height, width = shape

    def x(device: torch.device) -> Tensor:
        pixels = torch.empty((len(images), *shape), dtype=torch.uint8)
        for i, (file, _) in enumerate(images):
            image = decode(file.read_bytes(), file, channels, size)
            if image.shape[:2] != (height, width):
                raise DataError(
                    f"{file} is {image.shape[0]} × {image.shape[1]}, the first image {height} × {width}. "
                    f"Pass size=({height}, {width}) to resize all images."
                )
            pixels[i] = torch.from_numpy(image.copy()).view(height, width, channels).permute(2, 0, 1)
        return normalise(pixels.to(device))

    return Split(len(images), x, lambda: torch.tensor([label for _, label in images], dtype=torch.int64))
