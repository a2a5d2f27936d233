"""Streams that part the classes of one set among the tasks, one head per task."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .checks import class_counts, one_of, share, whole
from .pixels import CIFAR_MEAN, CIFAR_STD, IMAGENET_MEAN, IMAGENET_STD, Transform, normalise, split_of
from .registry import benchmark
from .seeding import generator, shuffled_out
from .sets.store import Dataset, load_dataset
from .stream import Stream, Task

ClassOrder = Literal["natural", "shuffled"]
Layout = Literal["planar", "as-published"]

# The five orders of CIFAR-100's superclasses over which the paper's superclass table is averaged.
SUPERCLASS_ORDERS = (
    tuple(range(20)),
    (15, 12, 5, 9, 7, 16, 18, 17, 1, 0, 3, 8, 11, 14, 10, 6, 2, 4, 13, 19),
    (17, 1, 19, 18, 12, 7, 6, 0, 11, 15, 10, 5, 13, 3, 9, 16, 4, 14, 2, 8),
    (11, 9, 6, 5, 12, 4, 0, 10, 13, 7, 14, 3, 15, 16, 8, 1, 2, 19, 18, 17),
    (6, 14, 0, 11, 12, 17, 13, 4, 9, 1, 7, 19, 8, 10, 3, 15, 18, 5, 2, 16),
)

SUPERCLASSES = (
    "aquatic mammals",
    "fish",
    "flowers",
    "food containers",
    "fruit and vegetables",
    "household electrical devices",
    "household furniture",
    "insects",
    "large carnivores",
    "large man-made outdoor things",
    "large natural outdoor scenes",
    "large omnivores and herbivores",
    "medium-sized mammals",
    "non-insect invertebrates",
    "people",
    "reptiles",
    "small mammals",
    "trees",
    "vehicles 1",
    "vehicles 2",
)


@benchmark("split-cifar100", "cifar100")
def split_cifar100(
    seed: int,
    *,
    tasks: int = 10,
    sizes: Sequence[int] | None = None,
    class_order: ClassOrder = "natural",
    valid: float = 0.05,
) -> Stream:
    """CIFAR-100 in 10 tasks of 10 classes, or any other split."""
    return _split("cifar100", 100, seed, tasks, sizes, class_order, valid, _standard(CIFAR_MEAN, CIFAR_STD))


@benchmark("split-miniimagenet", "miniimagenet")
def split_miniimagenet(
    seed: int,
    *,
    tasks: int = 20,
    sizes: Sequence[int] | None = None,
    class_order: ClassOrder = "shuffled",
    valid: float = 0.05,
) -> Stream:
    """miniImageNet in 20 tasks of 5 classes, the classes in an order drawn from the seed."""
    return _split("miniimagenet", 100, seed, tasks, sizes, class_order, valid, _standard(IMAGENET_MEAN, IMAGENET_STD))


@benchmark("split-tinyimagenet", "tiny_imagenet")
def split_tinyimagenet(
    seed: int,
    *,
    tasks: int = 20,
    sizes: Sequence[int] | None = None,
    classes: int = 100,
    class_order: ClassOrder = "shuffled",
    valid: float = 0.05,
) -> Stream:
    """Tiny ImageNet's first 100 classes in 20 tasks of 5, the classes in an order drawn from the seed."""
    classes = whole("classes", classes, 2, load_dataset("tiny_imagenet").classes)
    transform = _standard(IMAGENET_MEAN, IMAGENET_STD)
    return _split("tiny_imagenet", classes, seed, tasks, sizes, class_order, valid, transform)


@benchmark("cifar100-superclass", "cifar100")
def cifar100_superclass(seed: int, *, layout: Layout = "planar", order: int = 0, valid: float = 0.05) -> Stream:
    """CIFAR-100's 20 superclasses, one task of 5 classes each, in one of five published orders.

    The published numbers were made on pixels read in the wrong layout; `layout="as-published"` scrambles them alike.
    """
    transform = _scrambled if one_of("layout", layout, ("planar", "as-published")) == "as-published" else normalise
    dataset = load_dataset("cifar100")
    coarse, fine = dataset.coarse("train"), dataset.labels("train")
    tasks = []
    for number, group in enumerate(SUPERCLASS_ORDERS[whole("order", order, 0, 4)]):
        members = np.unique(fine[coarse == group])
        tasks.append(_task(SUPERCLASSES[group], dataset, members, seed, number, share("valid", valid), transform))
    return _multi("cifar100-superclass", dataset, tasks)


def _scrambled(x: Tensor) -> Tensor:
    """CIFAR's planes of bytes read as if they were interleaved, as the loader behind the published table does."""
    n, channels, height, width = x.shape
    return normalise(x.reshape(n, height, width, channels).permute(0, 3, 1, 2).contiguous())


def _standard(mean: tuple[float, ...], std: tuple[float, ...]) -> Transform:
    return lambda x: normalise(x, mean, std)


def _split(
    name: str,
    classes: int,
    seed: int,
    tasks: int,
    sizes: Sequence[int] | None,
    class_order: ClassOrder,
    valid: float,
    transform: Transform,
) -> Stream:
    counts = class_counts(tasks, sizes, classes)
    order: NDArray[np.int64] = np.arange(classes)
    if one_of("class_order", class_order, ("natural", "shuffled")) == "shuffled":
        order = generator(seed, "classes").permutation(classes)
    share("valid", valid)
    dataset = load_dataset(name)
    groups = np.split(order, np.cumsum(counts))[: len(counts)]
    made = [
        _task(f"classes {_listed(members)}", dataset, members, seed, t, valid, transform)
        for t, members in enumerate(groups)
    ]
    return _multi(name, dataset, made)


def _task(
    name: str,
    dataset: Dataset,
    members: NDArray[np.integer],
    seed: int,
    number: int,
    valid: float,
    transform: Transform,
) -> Task:
    """The task of some classes, which it numbers from 0 in the order given."""
    rows = np.flatnonzero(np.isin(dataset.labels("train"), members))
    train, held = shuffled_out(rows, valid, seed, number)
    test = np.flatnonzero(np.isin(dataset.labels("test"), members))
    labels = _localised(members)
    return Task(
        name,
        len(members),
        split_of(dataset, "train", train, transform, labels),
        split_of(dataset, "train", held, transform, labels),
        split_of(dataset, "test", test, transform, labels),
        tuple(int(m) for m in members),
    )


def _localised(members: NDArray[np.integer]) -> Callable[[NDArray[np.uint8]], Tensor]:
    local = np.full(256, -1, np.int64)
    local[members] = np.arange(len(members))
    return lambda labels: torch.from_numpy(local[labels])


def _multi(name: str, dataset: Dataset, tasks: list[Task]) -> Stream:
    return Stream(name, tuple(tasks), "multi", dataset.input_shape, tuple(task.classes for task in tasks))


def _listed(members: NDArray[np.integer]) -> str:
    """0–9 for a run of numbers, else the numbers themselves (the first few)."""
    numbers = [int(m) for m in members]
    if len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}–{numbers[-1]}"
    shown = ", ".join(map(str, numbers[:6]))
    return shown if len(numbers) <= 6 else f"{shown}, …"
