"""The paper's plain convolutional networks, a LeNet-5 and an AlexNet, and the parts that all convolutional networks share."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Annotated, Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant.options import Share, choice, kind_of, whole

from .network import Network, Units, linear_chain

Init = Literal["kaiming_uniform", "pytorch"]
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


class LeNet(Network):
    """Two convolutions and two fully connected layers, 20-50-800-500 (appendix, "CIFAR-100 Superclass Experiment").

    Each convolution is followed by ReLU, local response normalisation over four channels, and overlapping max-pooling.

    Args:
        width: filters of the first convolution; the other layers keep the proportions of 20-50-800-500.
        init: `kaiming_uniform` (fan-in, for ReLU, heads included), as in the experiment, or PyTorch's default.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int | Sequence[int],
        *,
        width: Annotated[int, whole(1, 10_000)] = 20,
        init: Init = "kaiming_uniform",
        bias: bool = False,
    ) -> None:
        super().__init__(input_shape, classes)
        kind_of(Init).read(init, f"init={init!r}: init")
        self.conv1 = nn.Conv2d(image_channels(self), width, 5, padding=2, bias=bias)
        self.conv2 = nn.Conv2d(width, width * 50 // 20, 5, padding=2, bias=bias)
        self.response_norm = ResponseNorm(4, alpha=0.001 / 9)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        features = features_after(self, [self.conv1, self.pool, self.conv2, self.pool])
        self.fc1 = nn.Linear(features, 40 * width, bias=bias)
        self.fc2 = nn.Linear(40 * width, 25 * width, bias=bias)
        self.attach_heads(25 * width, bias=bias)
        if init == "kaiming_uniform":
            for layer in self.modules():
                if isinstance(layer, nn.Linear | nn.Conv2d):
                    nn.init.kaiming_uniform_(layer.weight, mode="fan_in", nonlinearity="relu")

    def features(self, x: Tensor) -> Tensor:
        x = self.pool(self.response_norm(F.relu(self.conv1(x))))
        x = self.pool(self.response_norm(F.relu(self.conv2(x))))
        return F.relu(self.fc2(F.relu(self.fc1(x.flatten(1)))))

    def wiring(self) -> list[Units]:
        return linear_chain(*((layer, None, layer) for layer in (self.conv1, self.conv2, self.fc1, self.fc2)))


class ResponseNorm(nn.Module):
    """`nn.LocalResponseNorm` with β = 3/4 and k = 1: x / d^¾, where d = 1 + α·(mean of x² over `size` channels).

    On a CPU, torch's own takes two thirds of LeNet's step. Here the channels are added up by a matrix product, and the
    gradient is written out, which takes half as many passes over memory as autograd's.
    """

    fused: "Callable[[ResponseNorm, Tensor], Tensor | None] | None" = None  # as that of `ReluDropout`

    def __init__(self, size: int, *, alpha: float) -> None:
        super().__init__()
        self.size, self.scale = size, alpha / size

    def forward(self, x: Tensor) -> Tensor:
        if self.fused is not None and (done := self.fused(self, x)) is not None:
            return done
        if torch._C._are_functorch_transforms_active():  # such as vmap, for gradients of single examples
            return self.formula(x)
        return cast(Tensor, _ResponseNormalised.apply(x, self.near(x)))  # type: ignore[no-untyped-call]

    def formula(self, x: Tensor) -> Tensor:
        """Returns the output by operations that have gradients of every order."""
        return x * _factor(_divisor(x, self.near(x)))

    def near(self, x: Tensor) -> Tensor:
        """Returns the matrix that adds up nearby channels, times α / size."""
        square = x.new_full((x.shape[1], x.shape[1]), self.scale)
        return square.triu(-(self.size // 2)).tril((self.size - 1) // 2)


def _divisor(x: Tensor, near: Tensor) -> Tensor:
    """d = 1 + near·x², summed over channels."""
    return 1 + F.linear(x.square().movedim(1, -1), near).movedim(-1, 1)


def _factor(d: Tensor) -> Tensor:
    """d^−¾, without the slow power function."""
    return (d * d.sqrt()).rsqrt()


class _ResponseNormalised(torch.autograd.Function):
    """y = x·d^−¾ with d = 1 + near·x². For a gradient g of y, that of x is g·d^−¾ − 3/2·x·(nearᵀ·(g·x·d^−7⁄4))."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, near: Tensor) -> Tensor:
        d = _divisor(x, near)
        factor = _factor(d)
        ctx.save_for_backward(x, near, d, factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        x, near, d, factor = ctx.saved_tensors
        if torch.is_grad_enabled():  # a gradient of the gradient is wanted: d and the factor depend on x
            y = x * _factor(_divisor(x, near))
            return torch.autograd.grad(y, x, gradients[0], create_graph=True)[0], None
        dx = gradients[0] * factor
        through_d = F.linear((dx * x).div_(d).movedim(1, -1), -1.5 * near.t()).movedim(-1, 1)
        return dx.addcmul_(x, through_d), None


class AlexNet(Network):
    """Three convolutions and two fully connected layers for split CIFAR-100 (appendix, "AlexNet-like architecture").

    Each layer is followed by batch normalisation, ReLU and dropout, each convolution then by 2×2 max-pooling.

    Args:
        width: filters of the first convolution. The paper's 64 gives 64, 128, 256 filters and 2048, 2048 units.
        dropout: the rates after the first two layers and after the others. By default the paper's 0.2 and 0.5 with the norm
            `batch`, and 0 with `running`: dropout adds variance, which running statistics would expect of the test as well.
        norm: `running` for ordinary batch normalisation, `batch` for the current batch's statistics, as in the paper.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int | Sequence[int],
        *,
        width: Annotated[int, whole(1, 10_000)] = 64,
        dropout: tuple[Share, Share] | None = None,
        norm: Norm = "running",
        bias: bool = False,
    ) -> None:
        super().__init__(input_shape, classes)
        units = 32 * width
        early, late = dropout or ((0.2, 0.5) if norm == "batch" else (0.0, 0.0))
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
        return linear_chain(
            (self.conv1, self.norm1, self.active1),
            (self.conv2, self.norm2, self.active2),
            (self.conv3, self.norm3, self.active3),
            (self.fc1, self.norm4, self.active4),
            (self.fc2, self.norm5, self.active5),
        )
