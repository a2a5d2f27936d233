"""Builds the tasks of a stream from a dataset: which rows they hold, and how bytes become tensors."""

import zlib
from collections.abc import Callable
from functools import partial
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .errors import DataError
from .sets.store import Dataset, Part
from .stream import Split, Task

Rows = NDArray[np.int64]
Transform = Callable[[Tensor], Tensor]  # bytes N×C×H×W → float32, on the device of the bytes

CIFAR = (125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
STATISTICS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {  # mean and deviation of each channel
    "digits": ((0.3053,), (0.3761,)),
    "mnist": ((0.1307,), (0.3081,)),
    "fashion_mnist": ((0.2860,), (0.3530,)),
    "cifar100": CIFAR,
    "miniimagenet": IMAGENET,
    "tiny_imagenet": IMAGENET,
}
PARTS: tuple[Part, Part, Part] = (
    "train",
    "train",
    "test",
)  # the parts of a dataset that hold train, valid and test rows
BLOCK = 1024  # images transformed at a time on a CPU


def generator(seed: int, purpose: str, task: int = 0) -> np.random.Generator:
    """A random generator for one choice of one task, so that the order in which tasks are used does not matter."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise DataError(f"seed={seed!r}: a seed is a whole number from 0 up.")
    return np.random.default_rng([int(seed), zlib.crc32(purpose.encode()), task])


def held_out_count(count: int, share: float, option: str = "valid") -> int:
    """The number of examples that `share` holds out, rounded down as in the paper's scripts."""
    if not 0 <= share < 1:
        raise DataError(f"{option}={share!r}: the share of training examples held out lies in 0 … 1, 1 left out.")
    # The tiny term undoes binary rounding: 0.29 · 100 is 28.999… and means 29.
    return int(count * share + 1e-9)


def hold_out(rows: Rows, share: float, seed: int, task: int) -> tuple[Rows, Rows]:
    """Training and validation rows after a seeded shuffle."""
    shuffled = generator(seed, "validation", task).permutation(rows)
    count = held_out_count(len(rows), share)
    return shuffled[count:], shuffled[:count]


def normalise(
    x: Tensor, mean: tuple[float, ...] = (0.0,), std: tuple[float, ...] = (1.0,), white: float = 255.0
) -> Tensor:
    """(x / white − mean) / std per channel."""
    # One product and one difference, which IEEE rounds the same way everywhere: every device gets the same bits.
    scale = torch.tensor([1 / (white * s) for s in std], dtype=torch.float32, device=x.device)
    shift = torch.tensor([m / s for m, s in zip(mean, std, strict=True)], dtype=torch.float32, device=x.device)
    return (x * scale.view(-1, 1, 1)).sub_(shift.view(-1, 1, 1))  # bytes times float32 is float32


def standardise(dataset: str) -> Transform:
    """Normalises with the mean and deviation of the dataset."""
    mean, std = STATISTICS[dataset]
    return partial(normalise, mean=mean, std=std, white=16.0 if dataset == "digits" else 255.0)


def channels_first(images: NDArray[np.uint8], device: torch.device) -> Tensor:
    """N×H×W or N×H×W×3 bytes as N×C×H×W on a device. They are transposed there, which is faster."""
    x = torch.from_numpy(images).to(device)
    return x.unsqueeze(1) if x.ndim == 3 else x.permute(0, 3, 1, 2).contiguous()


def make_task(
    name: str,
    dataset: Dataset,
    rows: tuple[Rows, Rows, Rows],
    transform: Transform,
    labels: tuple[int, ...],
    outputs: Rows | None = None,
) -> Task:
    """The task of the given train, valid and test rows; `outputs[label]` is the network's output for a label."""
    train, valid, test = (_split(dataset, *each, transform, outputs) for each in zip(PARTS, rows, strict=True))
    return Task(name, len(labels), train, valid, test, labels)


def _split(dataset: Dataset, part: Part, rows: Rows, transform: Transform, outputs: Rows | None) -> Split:
    def make_x(device: torch.device) -> Tensor:
        # A CPU works within its cache block by block, which is twice as fast. A GPU takes all at once.
        images, size = dataset.images(part), BLOCK if device.type == "cpu" else max(len(rows), 1)
        starts = range(0, max(len(rows), 1), size)
        blocks = (transform(channels_first(images[rows[start : start + size]], device)) for start in starts)
        first = next(blocks)
        if len(first) == len(rows):
            return first
        x = first.new_empty((len(rows), *first.shape[1:]))
        for start, block in zip(starts, chain([first], blocks), strict=True):
            x[start : start + size] = block
        return x

    def make_y() -> Tensor:
        labels = dataset.labels(part)[rows].astype(np.int64)
        return torch.from_numpy(labels if outputs is None else outputs[labels])

    return Split(len(rows), make_x, make_y)
