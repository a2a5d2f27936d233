"""Streams that divide the classes of one dataset among the tasks, one head per task."""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from remnant.options import Kind, Share, whole

from .errors import DataError
from .sets.store import load_dataset
from .stream import Stream
from .task_builder import class_stream, generator, normalise, standardise

ClassOrder = Literal["natural", "shuffled"]
Tasks = Annotated[int, whole(1, 1000)]
Sizes = Sequence[Annotated[int, whole(2, 1000)]] | None
SuperclassOrder = Annotated[
    int | Literal["seed"],
    Kind(
        "a whole number from 0 to 4, or 'seed' (the seed mod 5)",
        lambda value: value if value == "seed" else whole(0, 4).read(value),
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
    available = load_dataset("tiny_imagenet").classes
    if classes > available:
        raise DataError(f"classes={classes}: this copy of Tiny ImageNet has {available} classes.")
    return _split("tiny_imagenet", classes, seed, tasks, sizes, class_order, valid)


def cifar100_superclass(
    seed: int,
    *,
    layout: Literal["planar", "as-published"] = "planar",
    order: SuperclassOrder = 0,
    valid: Share = 0.05,
) -> Stream:
    """CIFAR-100's 20 superclasses, one task of 5 classes each, in one of five published orders.

    `order="seed"` takes the order number (seed mod 5), so that five seeds cover the five orders. The published results
    were measured on pixels read in the wrong layout; `layout="as-published"` scrambles them in the same way.
    """
    dataset, transform = load_dataset("cifar100"), _scrambled if layout == "as-published" else normalise
    coarse, fine = dataset.coarse("train"), dataset.labels("train")
    groups = SUPERCLASS_ORDERS[seed % len(SUPERCLASS_ORDERS) if order == "seed" else order]
    tasks = [(SUPERCLASSES[group], dataset, np.unique(fine[coarse == group]), transform) for group in groups]
    return class_stream("cifar100-superclass", "multi", tasks, valid, seed)


def _scrambled(x: Tensor) -> Tensor:
    """CIFAR's planes of bytes read as if they were interleaved, as in the loader behind the published table."""
    n, channels, height, width = x.shape
    return normalise(x.reshape(n, height, width, channels).permute(0, 3, 1, 2).contiguous())


def _split(
    name: str, classes: int, seed: int, tasks: int, sizes: Sizes, class_order: ClassOrder, valid: float
) -> Stream:
    counts = _class_counts(classes, tasks, sizes)
    order = generator(seed, "classes").permutation(classes) if class_order == "shuffled" else np.arange(classes)
    dataset, transform = load_dataset(name), standardise(name)
    groups = np.split(order, np.cumsum(counts))[: len(counts)]
    made = [(f"classes {_abbreviated(members)}", dataset, members, transform) for members in groups]
    return class_stream(name, "multi", made, valid, seed)


def _class_counts(classes: int, tasks: int, sizes: Sizes) -> list[int]:
    """Classes per task: `classes` in `tasks` equal parts, or as listed in `sizes`."""
    if sizes is not None:
        if sum(sizes) > classes:
            raise DataError(f"sizes={list(sizes)}: they ask for {sum(sizes)} classes, and there are {classes}.")
        return list(sizes)
    if classes % tasks or tasks > classes // 2:
        raise DataError(
            f"tasks={tasks}: {classes} classes cannot be divided into {tasks} equal tasks of at least 2. Give the number "
            "of classes of each task: sizes=[…], on the command line --set stream.sizes=[…]."
        )
    return [classes // tasks] * tasks


def _abbreviated(members: NDArray[np.integer]) -> str:
    """`0–9` for consecutive numbers, otherwise the first few."""
    numbers = [int(m) for m in members]
    if len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}–{numbers[-1]}"
    shown = ", ".join(map(str, numbers[:6]))
    return shown if len(numbers) <= 6 else f"{shown}, …"
