"""The AlexNet-like network of the split CIFAR-100 experiment."""

from collections.abc import Sequence
from typing import Annotated

from torch import Tensor, nn

from remnant.options import Share, whole

from .network import Network, Units, chain
from .parts import Norm, ReluDropout, features_after, image_channels, norm_after


class AlexNet(Network):
    """Three convolutions and two fully connected layers (appendix, "AlexNet-like architecture").

    Each layer is followed by batch normalisation, ReLU and dropout, each convolution then by 2×2 max-pooling.

    Args:
        width: filters of the first convolution. The paper's 64 gives 64, 128, 256 filters and 2048, 2048 units.
        dropout: the rates after the first two layers and after the others.
        norm: `running` for ordinary batch normalisation, `batch` for the current batch's statistics, as in the paper.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int | Sequence[int],
        *,
        width: Annotated[int, whole(1, 10_000)] = 64,
        dropout: tuple[Share, Share] = (0.2, 0.5),
        norm: Norm = "running",
        bias: bool = False,
    ) -> None:
        super().__init__(input_shape, classes)
        units = 32 * width
        early, late = dropout

        self.conv1 = nn.Conv2d(image_channels(self), width, 4, bias=bias)
        self.norm1 = norm_after(self.conv1, norm)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, bias=bias)
        self.norm2 = norm_after(self.conv2, norm)
        self.conv3 = nn.Conv2d(2 * width, 4 * width, 2, bias=bias)
        self.norm3 = norm_after(self.conv3, norm)
        self.active1, self.active2 = (ReluDropout(early, pool=True) for _ in range(2))
        self.active3 = ReluDropout(late, pool=True)
        self.active4, self.active5 = (ReluDropout(late) for _ in range(2))

        pool = nn.MaxPool2d(2)
        features = features_after(self, [self.conv1, pool, self.conv2, pool, self.conv3, pool])
        self.fc1 = nn.Linear(features, units, bias=bias)
        self.norm4 = norm_after(self.fc1, norm)
        self.fc2 = nn.Linear(units, units, bias=bias)
        self.norm5 = norm_after(self.fc2, norm)
        self.attach_heads(units, bias=bias)

    def features(self, x: Tensor) -> Tensor:
        x = self.active1(self.conv1(x), self.norm1)
        x = self.active2(self.conv2(x), self.norm2)
        x = self.active3(self.conv3(x), self.norm3)
        x = self.active4(self.fc1(x.flatten(1)), self.norm4)
        x = self.active5(self.fc2(x), self.norm5)
        return x

    def wiring(self) -> list[Units]:
        return chain(
            (self.conv1, self.norm1, self.active1),
            (self.conv2, self.norm2, self.active2),
            (self.conv3, self.norm3, self.active3),
            (self.fc1, self.norm4, self.active4),
            (self.fc2, self.norm5, self.active5),
        )
