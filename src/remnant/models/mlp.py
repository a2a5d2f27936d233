"""The fully connected network of the permuted-MNIST experiment."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import Tensor, nn
from torch.nn import functional as F

from remnant.options import Positive

from .network import Network, Units, chain


class MLP(Network):
    """Fully connected layers with ReLU; the paper's has two hidden layers of 100 units (Sec. 6).

    Args:
        hidden: the units of each hidden layer.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int | Sequence[int],
        *,
        hidden: Sequence[Positive] = (100, 100),
        bias: bool = False,
    ) -> None:
        super().__init__(input_shape, classes)
        widths = (prod(self.input_shape), *hidden)
        self.hidden = nn.ModuleList(nn.Linear(inputs, outputs, bias=bias) for inputs, outputs in pairwise(widths))
        self.attach_heads(widths[-1], bias=bias)

    def features(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.hidden:
            x = F.relu(layer(x))
        return x

    def wiring(self) -> list[Units]:
        return chain(*((layer, None, layer) for layer in self.hidden if isinstance(layer, nn.Linear)))
