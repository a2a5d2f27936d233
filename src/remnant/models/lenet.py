"""The modified LeNet-5 of the CIFAR-100 superclass experiment."""

from collections.abc import Sequence
from typing import Annotated, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from remnant.options import kind_of, whole

from .network import Network, Units, chain
from .parts import features_after, image_channels

Init = Literal["kaiming_uniform", "pytorch"]


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
        kind_of(Init).check("init", init, f"init={init!r}")
        self.conv1 = nn.Conv2d(image_channels(self), width, 5, padding=2, bias=bias)
        self.conv2 = nn.Conv2d(width, width * 50 // 20, 5, padding=2, bias=bias)
        self.response_norm = nn.LocalResponseNorm(4, alpha=0.001 / 9, beta=0.75, k=1)
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
        return chain(*((layer, None, layer) for layer in (self.conv1, self.conv2, self.fc1, self.fc2)))
