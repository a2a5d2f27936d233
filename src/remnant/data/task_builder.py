"""Builds the tasks of a stream from a dataset: which rows they hold, and how bytes become tensors."""

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remnant.options import whole

from .errors import DataError
from .sets.store import Dataset
from .stream import ClassOrder, Head, Split, Task

Rows = NDArray[np.int64]
Tasks = Annotated[int, whole(1, 1000)]  # how many
Transform = Callable[[Tensor], Tensor]  # images N×C×H×W → images, from bytes to float32, on their device

BLOCK = 1024  # images transformed at a time on a CPU


def generator(seed: int, purpose: str, task: int = 0) -> np.random.Generator:
    """A random generator for one choice of one task, so that the order in which tasks are used does not matter."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise DataError(f"seed={seed!r}: a seed is a whole number from 0 up.")
    return np.random.default_rng([int(seed), zlib.crc32(purpose.encode()), task])


def ordered_classes(count: int, order: ClassOrder, seed: int) -> Rows:
    """The numbers of `count` classes in the order in which tasks take them."""
    return generator(seed, "classes").permutation(count) if order == "shuffled" else np.arange(count)


def held_out_count(count: int, share: float, option: str = "valid") -> int:
    """The number of examples that `share` holds out, rounded down as in the paper's scripts."""
    if not 0 <= share < 1:
        raise DataError(f"{option}={share!r}: the share of training examples held out lies in 0 … 1, 1 left out.")
    # The tiny term undoes binary rounding: 0.29 · 100 is 28.999… and means 29.
    return int(count * share + 1e-9)


def hold_out(rows: Rows, share: float, seed: int, task: int, part: str = "validation") -> tuple[Rows, Rows]:
    """Training rows and those held out for validation, or for another part, after a seeded shuffle."""
    shuffled = generator(seed, part, task).permutation(rows)
    count = held_out_count(len(rows), share, "valid" if part == "validation" else part)
    return shuffled[count:], shuffled[:count]


def normalise(
    x: Tensor, mean: tuple[float, ...] = (0.0,), std: tuple[float, ...] = (1.0,), white: float = 255.0
) -> Tensor:
    """(x / white − mean) / std per channel."""
    # One product and one difference, which IEEE rounds the same way everywhere: every device gets the same bits.
    scale = torch.tensor([1 / (white * s) for s in std], dtype=torch.float32, device=x.device)
    shift = torch.tensor([m / s for m, s in zip(mean, std, strict=True)], dtype=torch.float32, device=x.device)
    return (x * scale.view(-1, 1, 1)).sub_(shift.view(-1, 1, 1))  # bytes times float32 is float32


def as_inputs(values: Tensor) -> Tensor:
    """What a network gets: bytes become float32 from 0 to 1; int64 stays, for tokens; the rest becomes float32."""
    if values.dtype == torch.uint8:
        return values.to(torch.float32).mul_(1 / 255)
    return values if values.dtype == torch.int64 else values.to(torch.float32)


CIFAR = (125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
STANDARDISE: dict[str, Transform] = {  # normalises with the dataset's mean and deviation of each channel
    "digits": partial(normalise, mean=(0.3053,), std=(0.3761,), white=16.0),
    "mnist": partial(normalise, mean=(0.1307,), std=(0.3081,)),
    "fashion_mnist": partial(normalise, mean=(0.2860,), std=(0.3530,)),
    "cifar100": partial(normalise, mean=CIFAR[0], std=CIFAR[1]),
    "miniimagenet": partial(normalise, mean=IMAGENET[0], std=IMAGENET[1]),
    "tiny_imagenet": partial(normalise, mean=IMAGENET[0], std=IMAGENET[1]),
}


def make_task(
    name: str,
    dataset: Dataset,
    rows: tuple[Rows, Rows, Rows],
    transforms: Sequence[Transform],
    labels: tuple[int, ...],
    head: Head,
) -> Task:
    """The task of the given train, valid and test rows. With `head="multi"`, its labels count from 0."""
    outputs = np.arange(256)  # the network's output for a label: the label itself, if all tasks share a head
    if head == "multi":
        outputs[list(labels)] = np.arange(len(labels))
    splits = []
    for part, chosen in zip(("train", "train", "test"), rows, strict=True):
        make_x = partial(_images, dataset, f"{part}_images", chosen, transforms)
        splits.append(Split(len(chosen), make_x, partial(_outputs, dataset, f"{part}_labels", chosen, outputs)))
    train, valid, test = splits
    return Task(name, len(labels), train, valid, test, labels)


def _outputs(dataset: Dataset, key: str, rows: Rows, outputs: Rows) -> Tensor:
    return torch.from_numpy(outputs[dataset.arrays[key][rows]])


def _images(dataset: Dataset, key: str, rows: Rows, transforms: Sequence[Transform], device: torch.device) -> Tensor:
    """The transformed images of these rows. Bytes become channels first on the device, which is faster."""
    # A CPU works within its cache block by block, which is twice as fast. A GPU takes all at once.
    images, size = dataset.arrays[key], BLOCK if device.type == "cpu" else max(len(rows), 1)
    x = torch.empty(0)
    for start in range(0, max(len(rows), 1), size):
        block = torch.from_numpy(images[rows[start : start + size]]).to(device)
        block = block.unsqueeze(1) if block.ndim == 3 else block.permute(0, 3, 1, 2).contiguous()
        for transform in transforms:
            block = transform(block)
        if len(block) == len(rows):
            return block
        if start == 0:
            x = block.new_empty((len(rows), *block.shape[1:]))
        x[start : start + size] = block
    return x
