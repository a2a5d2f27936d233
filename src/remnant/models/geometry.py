"""Image sizes, computed from the modules that change them."""

from collections.abc import Sequence
from itertools import count

from torch import nn

Size = tuple[int, int]
Sliding = nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d


def image_shape(owner: str, input_shape: Sequence[int]) -> tuple[int, Size]:
    """The channels and (height, width) of an image. Other shapes are an error."""
    if len(input_shape) != 3:
        raise ValueError(f"{owner} takes images: input_shape must be (channels, height, width), not {input_shape}.")
    channels, height, width = input_shape
    return channels, (height, width)


def output_size(owner: str, image: Size, layers: Sequence[Sliding]) -> Size:
    """The (height, width) after a chain of convolutions and pools."""
    size = _size_after(layers, image)
    if min(size) < 1:
        smallest = next(side for side in count(1) if min(_size_after(layers, (side, side))) > 0)
        raise ValueError(
            f"{owner} cannot take images of {image[0]}×{image[1]}: nothing would be left before its last layer. "
            f"The smallest square it takes is {smallest}×{smallest}; pad or resize the images, or use another network."
        )
    return size


def _size_after(layers: Sequence[Sliding], size: Size) -> Size:
    """Zero where a window does not fit."""
    for layer in layers:
        size = (_positions(size[0], layer, 0), _positions(size[1], layer, 1))
        if min(size) < 1:
            return 0, 0
    return size


def _positions(length: int, layer: Sliding, axis: int) -> int:
    """The number of positions of the layer's window. Torch writes equal settings of both axes as one number or a pair."""
    settings = (layer.kernel_size, layer.stride, layer.padding)
    kernel, stride, padding = (int(each[axis] if isinstance(each, tuple) else each) for each in settings)
    return (length + 2 * padding - kernel) // stride + 1
