"""The reduced ResNet18 of the miniImageNet and 5-Datasets experiments."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated

from torch import Tensor, nn
from torch.nn import functional as F

from remnant.options import whole

from .convolutional import Norm, features_after, image_channels, norm_after
from .network import Maker, Network, Units


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut. Where the shape changes, the shortcut is a strided 1×1 convolution."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, norm: Norm, bias: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=bias)
        self.norm1 = norm_after(self.conv1, norm)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=bias)
        self.norm2 = norm_after(self.conv2, norm)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=bias)
            self.shortcut = nn.Sequential(OrderedDict(conv=conv, norm=norm_after(conv, norm)))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.shortcut(x))

    def wiring(self, read: Units) -> list[Units]:
        """The units between the convolutions, and the units of the sum."""
        inner = Units(self.norm1, (Maker(self.conv1, self.norm1, read),))
        makers = [Maker(self.conv2, self.norm2, inner)]
        if isinstance(self.shortcut, nn.Sequential):
            conv, norm = self.shortcut
            assert isinstance(conv, nn.Conv2d)
            makers.append(Maker(conv, norm, read))
        return [inner, Units(self, tuple(makers))]


class ResNet18(Network):
    """A stem and four stages of two blocks, 20, 40, 80 and 160 filters (appendix, "Reduced ResNet18 architecture").

    Args:
        width: filters of the stem and the first stage; each later stage doubles them.
        stem_stride: 1 for 32×32 images (5-Datasets), 2 for 84×84 (miniImageNet).
        norm: `running` for ordinary batch normalisation, `batch` for the current batch's statistics, as in the paper.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int | Sequence[int],
        *,
        width: Annotated[int, whole(1, 10_000)] = 20,
        stem_stride: Annotated[int, whole(1, 8)] = 1,
        norm: Norm = "running",
        bias: bool = False,
    ) -> None:
        super().__init__(input_shape, classes)

        def stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
            first = Block(inputs, outputs, stride=stride, norm=norm, bias=bias)
            return nn.Sequential(first, Block(outputs, outputs, stride=1, norm=norm, bias=bias))

        self.stem = nn.Conv2d(image_channels(self), width, 3, stride=stem_stride, padding=1, bias=bias)
        self.stem_norm = norm_after(self.stem, norm)
        self.stage1 = stage(width, width, 1)
        self.stage2 = stage(width, 2 * width, 2)
        self.stage3 = stage(2 * width, 4 * width, 2)
        self.stage4 = stage(4 * width, 8 * width, 2)
        self.pool = nn.AvgPool2d(2)
        main_path = [conv for block in self.blocks() for conv in (block.conv1, block.conv2)]
        self.attach_heads(features_after(self, [self.stem, *main_path, self.pool]), bias=bias)

    def blocks(self) -> list[Block]:
        return [block for block in self.modules() if isinstance(block, Block)]

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem_norm(self.stem(x)))
        x = self.stage4(self.stage3(self.stage2(self.stage1(x))))
        x = self.pool(x)
        return x.flatten(1)

    def wiring(self) -> list[Units]:
        units = [Units(self.stem_norm, (Maker(self.stem, self.stem_norm, None),))]
        for block in self.blocks():
            units += block.wiring(units[-1])
        return units
