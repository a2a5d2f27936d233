"""Parts that the convolutional networks share: image sizes, batch normalisation, and ReLU with dropout and pooling."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant.options import choice

from .network import Network

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


def image_channels(network: Network) -> int:
    """The channels of the network's input, which must be an image."""
    owner, shape = type(network).__name__, network.input_shape
    if len(shape) != 3:
        raise ValueError(f"{owner} takes images: input_shape must be (channels, height, width), not {shape}.")
    return shape[0]


def features_after(network: Network, layers: Sequence[nn.Module]) -> int:
    """The number of values that a chain of convolutions and pools makes from one input of the network."""
    channels, *image = network.input_shape
    if not (features := _outputs(layers, channels, *image)):
        smallest = next(side for side in count(1) if _outputs(layers, channels, side, side))
        raise ValueError(
            f"{type(network).__name__} cannot take images of {image[0]}×{image[1]}: nothing would be left before its last "
            f"layer. The smallest square it takes is {smallest}×{smallest}; pad or resize the images, or use another network."
        )
    return features


@torch.no_grad()
def _outputs(layers: Sequence[nn.Module], *shape: int) -> int:
    try:
        return int(nn.Sequential(*layers)(torch.zeros(1, *shape)).numel())
    except RuntimeError:  # a window is larger than its image
        return 0
