"""Parts that the convolutional networks share: image sizes, batch normalisation, and ReLU with dropout and pooling."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Annotated, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from remnant.options import choice

from .network import Network

Sliding = nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d
FusedForm = Callable[["ReluDropout", Tensor, nn.Module | None], Tensor | None]
NORM_KIND = replace(
    choice(("running", "batch")), words="'running' (also if the memory is to freeze its statistics) or 'batch'"
)
# running: ordinary batch normalisation, so the logits of a test example depend on that example alone.
# batch: training and test use the statistics of the current batch. The paper's tables were made this way.
Norm = Annotated[Literal["running", "batch"], NORM_KIND]


def norm_after(layer: nn.Linear | nn.Conv2d, norm: Norm) -> nn.BatchNorm1d | nn.BatchNorm2d:
    """The batch normalisation of a layer's outputs."""
    tracks = NORM_KIND.read(norm, f"norm={norm!r}: norm") == "running"
    kind = nn.BatchNorm2d if isinstance(layer, nn.Conv2d) else nn.BatchNorm1d
    return kind(len(layer.weight), track_running_stats=tracks)


class ReluDropout(nn.Module):
    """max(norm(x), 0), where training drops each value with probability `rate`; with `pool`, 2×2 max-pooling follows."""

    fused: FusedForm | None = None  # a faster form of `forward`, set by `remnant.accelerated.fuse_activations`

    def __init__(self, rate: float, *, pool: bool = False) -> None:
        super().__init__()
        self.rate, self.pool = rate, pool

    def forward(self, x: Tensor, norm: nn.Module | None = None) -> Tensor:
        if self.fused is not None and (done := self.fused(self, x, norm)) is not None:
            return done
        if norm is not None:
            x = norm(x)
        x = F.dropout(F.relu(x), self.rate, self.training)
        return F.max_pool2d(x, 2) if self.pool else x

    def extra_repr(self) -> str:
        return f"rate={self.rate}" + (", pool=True" if self.pool else "")


def image_channels(network: Network) -> int:
    """The channels of the network's input, which must be an image."""
    owner, shape = type(network).__name__, network.input_shape
    if len(shape) != 3:
        raise ValueError(f"{owner} takes images: input_shape must be (channels, height, width), not {shape}.")
    return shape[0]


def features_after(network: Network, layers: Sequence[Sliding]) -> int:
    """The number of values that a chain of convolutions and pools makes from one input of the network."""
    _, *image = network.input_shape
    height, width = (_length_after(layers, length, axis) for axis, length in enumerate(image))
    if not height * width:
        smallest = next(n for n in count(1) if _length_after(layers, n, 0) * _length_after(layers, n, 1))
        raise ValueError(
            f"{type(network).__name__} cannot take images of {image[0]}×{image[1]}: nothing would be left before its last "
            f"layer. The smallest square it takes is {smallest}×{smallest}; pad or resize the images, or use another network."
        )
    channels = [layer.out_channels for layer in layers if isinstance(layer, nn.Conv2d)]
    return channels[-1] * height * width


def _length_after(layers: Sequence[Sliding], length: int, axis: int) -> int:
    """One side of the image after the layers, or zero if a window does not fit."""
    for layer in layers:
        # Torch keeps the settings of both axes as one number or as a pair.
        settings = (layer.kernel_size, layer.stride, layer.padding)
        kernel, stride, padding = (int(each[axis] if isinstance(each, tuple) else each) for each in settings)
        length = (length + 2 * padding - kernel) // stride + 1
        if length < 1:
            return 0
    return length
