"""Streams whose tasks are groups of classes: of one dataset, class by class, or one dataset after another."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate, pad

from remnant.options import Kind, Share, whole

from .errors import DataError, MissingDataError
from .sets.store import Dataset, load_dataset
from .stream import ClassOrder, Head, Stream
from .task_builder import CIFAR, STANDARDISE, Tasks, Transform, hold_out, make_task, normalise, ordered_classes

Classes = NDArray[np.integer]
Sizes = Sequence[Annotated[int, whole(2, 1000)]] | None
SuperclassOrder = Annotated[
    int | Literal["seed"],
    Kind(
        "a whole number from 0 to 4, or 'seed' (the seed mod 5)",
        lambda value: value == "seed" or whole(0, 4).accepts(value),
    ),
]

# The five orders of CIFAR-100's superclasses over which the paper's superclass table is averaged.
SUPERCLASS_ORDERS = (
    tuple(range(20)),
    (15, 12, 5, 9, 7, 16, 18, 17, 1, 0, 3, 8, 11, 14, 10, 6, 2, 4, 13, 19),
    (17, 1, 19, 18, 12, 7, 6, 0, 11, 15, 10, 5, 13, 3, 9, 16, 4, 14, 2, 8),
    (11, 9, 6, 5, 12, 4, 0, 10, 13, 7, 14, 3, 15, 16, 8, 1, 2, 19, 18, 17),
    (6, 14, 0, 11, 12, 17, 13, 4, 9, 1, 7, 19, 8, 10, 3, 15, 18, 5, 2, 16),
)
SUPERCLASSES = (
    "aquatic mammals", "fish", "flowers", "food containers", "fruit and vegetables", "household electrical devices",
    "household furniture", "insects", "large carnivores", "large man-made outdoor things",
    "large natural outdoor scenes", "large omnivores and herbivores", "medium-sized mammals",
    "non-insect invertebrates", "people", "reptiles", "small mammals", "trees", "vehicles 1", "vehicles 2",
)  # fmt: skip

# Dataset → (title, mean, deviation), in the order of the code behind the paper's table. The statistics are those of the
# images at 32×32: MNIST and Fashion-MNIST padded with black, notMNIST enlarged. (No source says how the published 32×32
# notMNIST was made. Padding would bring its mean to 0.33, bicubic enlargement gives the 0.425 and 0.450 in use.)
FIVE = {
    "cifar10": ("CIFAR-10", *CIFAR),
    "mnist": ("MNIST", (0.1,) * 3, (0.2752,) * 3),
    "svhn": ("SVHN", (0.4377, 0.4438, 0.4728), (0.198, 0.201, 0.197)),
    "fashion_mnist": ("Fashion-MNIST", (0.2190,) * 3, (0.3318,) * 3),
    "notmnist": ("notMNIST", (0.4254,) * 3, (0.4501,) * 3),
}


def split_cifar100(
    seed: int, *, tasks: Tasks = 10, sizes: Sizes = None, class_order: ClassOrder = "natural", valid: Share = 0.05
) -> Stream:
    """CIFAR-100 in 10 tasks of 10 classes, or any other split."""
    return _split("cifar100", 100, seed, tasks, sizes, class_order, valid)


def split_miniimagenet(
    seed: int, *, tasks: Tasks = 20, sizes: Sizes = None, class_order: ClassOrder = "shuffled", valid: Share = 0.05
) -> Stream:
    """miniImageNet in 20 tasks of 5 classes, the classes in an order drawn from the seed."""
    return _split("miniimagenet", 100, seed, tasks, sizes, class_order, valid)


def split_tinyimagenet(
    seed: int,
    *,
    tasks: Tasks = 20,
    sizes: Sizes = None,
    classes: Annotated[int, whole(2, 1000)] = 100,
    class_order: ClassOrder = "shuffled",
    valid: Share = 0.05,
) -> Stream:
    """Tiny ImageNet's first 100 classes in 20 tasks of 5, the classes in an order drawn from the seed."""
    available = int(load_dataset("tiny_imagenet").arrays["train_labels"].max()) + 1
    if classes > available:
        raise DataError(f"classes={classes}: this copy of Tiny ImageNet has {available} classes.")
    return _split("tiny_imagenet", classes, seed, tasks, sizes, class_order, valid)


def digits_incremental(seed: int, *, class_order: ClassOrder = "natural", valid: Share = 0.1) -> Stream:
    """scikit-learn's digits, one digit per task, with one head for all."""
    return _incremental("digits", seed, class_order, valid)


def mnist_incremental(seed: int, *, class_order: ClassOrder = "natural", valid: Share = 0.1) -> Stream:
    """MNIST, one digit per task, with one head for all."""
    return _incremental("mnist", seed, class_order, valid)


def cifar100_superclass(
    seed: int, *, layout: Literal["planar", "as-published"] = "planar", order: SuperclassOrder = 0, valid: Share = 0.05
) -> Stream:
    """CIFAR-100's 20 superclasses, one task of 5 classes each, in one of five published orders."""
    dataset, transform = load_dataset("cifar100"), _scrambled if layout == "as-published" else normalise
    coarse, fine = dataset.arrays["train_coarse"], dataset.arrays["train_labels"]
    groups = SUPERCLASS_ORDERS[seed % len(SUPERCLASS_ORDERS) if order == "seed" else order]
    tasks = [(SUPERCLASSES[group], dataset, np.unique(fine[coarse == group]), transform) for group in groups]
    return _class_stream("cifar100-superclass", "multi", tasks, valid, seed)


def five_datasets(
    seed: int, *, fourth: Literal["fashion-mnist", "as-published"] = "fashion-mnist", valid: Share = 0.05
) -> Stream:
    """CIFAR-10, MNIST, SVHN, Fashion-MNIST (the recipe: MNIST again, as published) and notMNIST, one task each."""
    groups, missing = [], dict[str, str]()
    for name, (title, mean, std) in FIVE.items():
        if fourth == "as-published" and name == "fashion_mnist":  # with Fashion-MNIST's statistics
            name, title = "mnist", "MNIST again"
        transform = partial(_coloured, mean=mean, std=std, enlarge=name == "notmnist")
        try:
            groups.append((title, load_dataset(name), np.arange(10), transform))
        except MissingDataError as error:
            missing[name] = str(error)
    if missing:
        raise MissingDataError("\n".join(missing.values()))
    return _class_stream("five-datasets", "multi", groups, valid, seed)


def _split(
    name: str, classes: int, seed: int, tasks: int, sizes: Sizes, class_order: ClassOrder, valid: float
) -> Stream:
    """One task per group of classes: `tasks` equal groups, or groups of the given sizes."""
    if sizes is None and (classes % tasks or tasks > classes // 2):
        raise DataError(
            f"tasks={tasks}: {classes} classes cannot be divided into {tasks} equal tasks of at least 2. Give the number "
            "of classes of each task: sizes=[…], on the command line --set stream.sizes=[…]."
        )
    counts = [classes // tasks] * tasks if sizes is None else list(sizes)
    if sum(counts) > classes:
        raise DataError(f"sizes={counts}: they ask for {sum(counts)} classes, and there are {classes}.")
    dataset, transform = load_dataset(name), STANDARDISE[name]
    groups = np.split(ordered_classes(classes, class_order, seed), np.cumsum(counts))[: len(counts)]
    made = [(f"classes {_abbreviated(group.tolist())}", dataset, group, transform) for group in groups]
    return _class_stream(name, "multi", made, valid, seed)


def _incremental(name: str, seed: int, class_order: ClassOrder, valid: float) -> Stream:
    dataset, transform = load_dataset(name), STANDARDISE[name]
    digits = ordered_classes(10, class_order, seed)
    groups = [(f"digit {digit}", dataset, np.array([digit]), transform) for digit in digits]
    return _class_stream(name, "single", groups, valid, seed)


def _class_stream(
    name: str, head: Head, groups: Iterable[tuple[str, Dataset, Classes, Transform]], valid: float, seed: int
) -> Stream:
    """A stream with one task per group of classes."""
    tasks, shapes = [], []
    for number, (title, dataset, classes, transform) in enumerate(groups):
        own, test = (np.flatnonzero(np.isin(dataset.arrays[f"{p}_labels"], classes)) for p in ("train", "test"))
        train, held = hold_out(own, valid, seed, number)
        tasks.append(make_task(title, dataset, (train, held, test), (transform,), tuple(classes.tolist()), head))
        shapes.append(dataset.input_shape)
    sizes = tuple(task.classes for task in tasks)
    return Stream(name, tuple(tasks), head, shapes[0], sizes if head == "multi" else (sum(sizes),))


def _scrambled(x: Tensor) -> Tensor:
    """CIFAR's planes of bytes read as if they were interleaved, as in the loader behind the published table."""
    n, channels, height, width = x.shape
    return normalise(x.reshape(n, height, width, channels).permute(0, 3, 1, 2).contiguous())


def _coloured(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...], enlarge: bool) -> Tensor:
    """Normalised 32×32 images in three channels. Grey ones are padded, or enlarged and rounded to bytes."""
    if x.shape[1] == 1 and enlarge and len(x):
        larger = interpolate(x.to(torch.float32), (32, 32), mode="bicubic", antialias=True, align_corners=False)
        x = larger.round_().clamp_(0, 255)
    elif x.shape[1] == 1:
        x = pad(x, (2, 2, 2, 2))
    return normalise(x.expand(-1, 3, -1, -1), mean, std)


def _abbreviated(classes: list[int]) -> str:
    """`0–9` for consecutive numbers, otherwise the first few."""
    if len(classes) > 1 and classes == list(range(classes[0], classes[-1] + 1)):
        return f"{classes[0]}–{classes[-1]}"
    return ", ".join(map(str, classes[:6])) + (", …" if len(classes) > 6 else "")
