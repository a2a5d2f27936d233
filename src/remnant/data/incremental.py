"""Class-incremental streams: one new class per task, one head for all, and no hint of the task."""

from typing import Literal

import numpy as np
from torch import Tensor

from .checks import one_of, share
from .permuted import MNIST_STATS
from .pixels import normalise, split_of
from .registry import benchmark
from .seeding import generator, shuffled_out
from .sets.store import load_dataset
from .stream import Stream, Task

ClassOrder = Literal["natural", "shuffled"]


@benchmark("digits-incremental", "digits")
def digits_incremental(seed: int, *, class_order: ClassOrder = "natural", valid: float = 0.1) -> Stream:
    """scikit-learn's digits, one digit per task."""
    return _incremental("digits", seed, class_order, valid, (0.3053,), (0.3761,), full=16.0)


@benchmark("mnist-incremental", "mnist")
def mnist_incremental(seed: int, *, class_order: ClassOrder = "natural", valid: float = 0.1) -> Stream:
    """MNIST, one digit per task."""
    return _incremental("mnist", seed, class_order, valid, *MNIST_STATS)


def _incremental(
    name: str,
    seed: int,
    class_order: ClassOrder,
    valid: float,
    mean: tuple[float],
    std: tuple[float],
    full: float = 255.0,
) -> Stream:
    order = np.arange(10)
    if one_of("class_order", class_order, ("natural", "shuffled")) == "shuffled":
        order = generator(seed, "classes").permutation(10)
    share("valid", valid)
    dataset = load_dataset(name)

    def transform(x: Tensor) -> Tensor:
        return normalise(x, mean, std, full)

    tasks = []
    for number, digit in enumerate(int(d) for d in order):
        train, held = shuffled_out(np.flatnonzero(dataset.labels("train") == digit), valid, seed, number)
        test = np.flatnonzero(dataset.labels("test") == digit)
        tasks.append(
            Task(
                f"digit {digit}",
                1,
                split_of(dataset, "train", train, transform),
                split_of(dataset, "train", held, transform),
                split_of(dataset, "test", test, transform),
                (digit,),
            )
        )
    return Stream(name, tuple(tasks), "single", dataset.input_shape, (10,))
