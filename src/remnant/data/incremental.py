"""Class-incremental streams: each task brings one new class, and one head has to tell all classes apart."""

from typing import Literal

import numpy as np

from remnant.options import Share

from .sets.store import load_dataset
from .stream import Stream
from .task_builder import class_stream, generator, standardise

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
    groups = [(f"digit {digit}", dataset, np.array([digit]), transform) for digit in order]
    return class_stream(name, "single", groups, valid, seed)
