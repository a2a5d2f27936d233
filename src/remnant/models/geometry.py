"""Image sizes, read off the modules that change them and never typed."""

from collections.abc import Sequence
from itertools import count

from torch import nn

Size = tuple[int, int]
Sliding = nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d


def image_shape(owner: str, input_shape: Sequence[int]) -> tuple[int, Size]:
    """Channels and (height, width) of an image, or an error for anything else."""
    if len(input_shape) != 3:
        raise ValueError(f"{owner} takes images: input_shape must be (channels, height, width), not {input_shape}.")
    channels, height, width = input_shape
    return channels, (height, width)


def output_size(owner: str, image: Size, layers: Sequence[Sliding]) -> Size:
    """The (height, width) that leaves a chain of convolutions and pools."""
    size = _follow(image, layers)
    if size is None:
        smallest = next(side for side in count(1) if _follow((side, side), layers) is not None)
        raise ValueError(
            f"{owner} cannot take images of {image[0]}×{image[1]}: nothing would be left before its last layer. "
            f"The smallest square it takes is {smallest}×{smallest}; pad or resize the images, or use another model."
        )
    return size


def _follow(size: Size, layers: Sequence[Sliding]) -> Size | None:
    """`output_size`, or None where a window does not fit."""
    for layer in layers:
        geometry = (layer.kernel_size, layer.stride, layer.padding, getattr(layer, "dilation", 1))
        size = (
            _positions(size[0], *(_side(g, 0) for g in geometry)),
            _positions(size[1], *(_side(g, 1) for g in geometry)),
        )
        if min(size) < 1:
            return None
    return size


def _positions(length: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """How many places a window can stand in."""
    return (length + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _side(setting: object, axis: int) -> int:
    """Torch writes a setting that is the same on both axes as one number or as a pair."""
    value = setting[axis] if isinstance(setting, tuple) else setting
    assert isinstance(value, int), f"a size, not {setting!r}"
    return value
