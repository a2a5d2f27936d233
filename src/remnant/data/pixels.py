"""From stored bytes to the numbers a network sees."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .seeding import Rows
from .sets.store import Dataset, Part
from .stream import Split

Transform = Callable[[Tensor], Tensor]  # bytes N×C×H×W → float32, on whatever device the bytes are

BLOCK = 1024

CIFAR_MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
CIFAR_STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def normalise(
    x: Tensor, mean: tuple[float, ...] = (0.0,), std: tuple[float, ...] = (1.0,), full: float = 255.0
) -> Tensor:
    """(x / full − mean) / std per channel; `full` is the byte that means 1.

    As one product and one difference: IEEE rounds each alike everywhere, so every device gets the same bits.
    """
    scale = torch.tensor([1 / (full * s) for s in std], dtype=torch.float32, device=x.device)
    shift = torch.tensor([m / s for m, s in zip(mean, std, strict=True)], dtype=torch.float32, device=x.device)
    return (x * scale.view(-1, 1, 1)).sub_(shift.view(-1, 1, 1))  # bytes times float32 is float32


def channels_first(images: NDArray[np.uint8], device: torch.device) -> Tensor:
    """N×H×W or N×H×W×3 bytes as N×C×H×W on a device. They travel as they lie and are turned there."""
    x = torch.from_numpy(images).to(device)
    return x.unsqueeze(1) if x.ndim == 3 else x.permute(0, 3, 1, 2).contiguous()


def split_of(
    dataset: Dataset,
    part: Part,
    rows: Rows,
    transform: Transform,
    labels: Callable[[NDArray[np.uint8]], Tensor] | None = None,
) -> Split:
    """The given rows of a set as a split; pixels are read, moved and transformed when asked for."""

    def x(device: torch.device) -> Tensor:
        images, count = dataset.images(part), len(rows)
        # Block by block a CPU works within its cache: no whole copies in between, and twice as fast. A GPU takes all.
        block = BLOCK if device.type == "cpu" else max(count, 1)
        made: Tensor | None = None
        for start in range(0, max(count, 1), block):
            some = transform(channels_first(images[rows[start : start + block]], device))
            if made is None:
                made = some if len(some) == count else some.new_empty((count, *some.shape[1:]))
            if made is not some:
                made[start : start + block] = some
        assert made is not None
        return made

    def y() -> Tensor:
        chosen = dataset.labels(part)[rows]
        return labels(chosen) if labels else torch.from_numpy(chosen.astype(np.int64))

    return Split(len(rows), x, y)
