"""Every random choice of a stream, from its seed alone: the same on any machine, in any order of asking."""

import zlib

import numpy as np
from numpy.typing import NDArray

from .errors import DataError

Rows = NDArray[np.int64]


def generator(seed: int, purpose: str, task: int = 0) -> np.random.Generator:
    """One generator per choice, so that a task asked for last is the task asked for first."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise DataError(f"seed={seed!r}: a seed is a whole number from 0 up.")
    return np.random.default_rng([int(seed), zlib.crc32(purpose.encode()), task])


def held_out(count: int, fraction: float, option: str = "valid") -> int:
    """How many of `count` examples the fraction given as `option` holds out: rounded down, as behind the paper's tables."""
    if not 0 <= fraction < 1:
        raise DataError(f"{option}={fraction!r}: the share of training examples held out lies in 0 … 1, 1 left out.")
    # The tiny term undoes binary rounding: 0.29 · 100 is 28.999… and means 29.
    return int(count * fraction + 1e-9)


def first_out(rows: Rows, fraction: float) -> tuple[Rows, Rows]:
    """Train and validation rows, the validation taken from the front, unshuffled (PMNIST)."""
    n = held_out(len(rows), fraction)
    return rows[n:], rows[:n]


def shuffled_out(rows: Rows, fraction: float, seed: int, task: int) -> tuple[Rows, Rows]:
    """Train and validation rows after a seeded shuffle (CIFAR-100, superclass, miniImageNet, 5-Datasets)."""
    shuffled = generator(seed, "validation", task).permutation(rows)
    n = held_out(len(rows), fraction)
    return shuffled[n:], shuffled[:n]
