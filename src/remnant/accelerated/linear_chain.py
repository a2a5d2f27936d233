"""The network whose steps can be written out by hand: fully connected layers without biases, one after the other."""

from __future__ import annotations

from torch import Tensor

from remnant.data import Split
from remnant.memory import full_precision
from remnant.methods import Method
from remnant.models import MLP

# What a step is made of: a class that changes one of these must say anew what remains, or it was said of another step.
STEP = ("step", "loss", "gradients", "apply_gradients", "parameters")


def is_linear_chain(method: Method) -> bool:
    """Whether each step is W ← W − lr·δᵀ·(x·P) for every layer, with P what remains of its input's space (Eq. 6–7)."""
    network = method.network
    return (
        type(network) is MLP
        and all(name.endswith("weight") and p.requires_grad for name, p in network.named_parameters())
        and _says_it_of_this_step(type(method))
        and method.remaining() is not None
    )


def _says_it_of_this_step(kind: type[Method]) -> bool:
    said = kind.__mro__.index(_owner(kind, "remaining"))
    return all(kind.__mro__.index(_owner(kind, name)) >= said for name in STEP)


def _owner(kind: type, name: str) -> type:
    return next(owner for owner in kind.__mro__ if name in vars(owner))


class LinearChain:
    """The task's head last. Weights are the network's own tensors; the first layer's inputs are projected here, once."""

    def __init__(self, method: Method, train: Split) -> None:
        network = method.network
        assert isinstance(network, MLP)
        head = f"heads.{method.task}" if network.multi_head else "head"
        names = [*(f"hidden.{number}" for number in range(len(network.hidden))), head]
        self.weights: list[Tensor] = [layer.weight.detach() for layer in (*network.hidden, method.head)]
        remaining = method.remaining() or {}
        first, *self.projections = (remaining.get(name) for name in names)  # None: all of it remains
        self.x, self.y = train.x.flatten(1).contiguous(), train.y
        with full_precision(self.x.device):  # most of an input is what is taken away: rounding is relative to that
            self.inputs = self.x if first is None else self.x @ first
