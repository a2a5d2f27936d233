"""The case in which a step can be written out by hand: an MLP without biases, and a method that only projects gradients."""

from __future__ import annotations

from torch import Tensor

from remnant.data import Split
from remnant.memory import full_precision
from remnant.methods import Method
from remnant.models import MLP


def is_linear_chain(method: Method) -> bool:
    """Whether each step is W ← W − lr·δᵀ·(x·P) for every layer, with a matrix P that is fixed within a task (Eq. 6–7)."""
    network = method.network
    return (
        type(network) is MLP
        and all(name.endswith("weight") and p.requires_grad for name, p in network.named_parameters())
        and method.fast_form == "projected-sgd"
        and method.uses_plain_sgd
    )


class LinearChain:
    """The tensors of such a step: the weights, the head's last, and the data with the first layer's inputs projected once."""

    def __init__(self, method: Method, train: Split) -> None:
        network = method.network
        assert isinstance(network, MLP)
        head = f"heads.{method.task}" if network.multi_head else "head"
        names = [*(f"hidden.{number}" for number in range(len(network.hidden))), head]
        self.weights: list[Tensor] = [layer.weight.detach() for layer in (*network.hidden, method.head)]
        projections = method.layer_projections()
        first, *self.projections = (projections.get(name) for name in names)  # None: the whole gradient is used
        self.x, self.y = train.x.flatten(1).contiguous(), train.y
        with full_precision(self.x.device):  # the projection removes most of an input, so rounding would weigh more
            self.inputs = self.x if first is None else self.x @ first
