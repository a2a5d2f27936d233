"""Class-incremental streams: each task brings one new class, and one head has to tell all classes apart."""

from typing import Literal

import numpy as np

from remnant.options import Share

from .sets.store import load_dataset
from .stream import Stream
from .task_builder import class_task, generator, standardise

ClassOrder = Literal["natural", "shuffled"]


def digits_incremental(seed: int, *, class_order: ClassOrder = "natural", valid: Share = 0.1) -> Stream:
    """scikit-learn's digits, one digit per task."""
    return _incremental("digits", seed, class_order, valid)


def mnist_incremental(seed: int, *, class_order: ClassOrder = "natural", valid: Share = 0.1) -> Stream:
    """MNIST, one digit per task."""
    return _incremental("mnist", seed, class_order, valid)


def _incremental(name: str, seed: int, class_order: ClassOrder, valid: float) -> Stream:
    order = generator(seed, "classes").permutation(10) if class_order == "shuffled" else np.arange(10)
    dataset, transform = load_dataset(name), standardise(name)
    tasks = [
        class_task(f"digit {d}", dataset, np.array([d]), transform, head="single", valid=valid, seed=seed, number=t)
        for t, d in enumerate(order)
    ]
    return Stream(name, tuple(tasks), "single", dataset.input_shape, (10,))
