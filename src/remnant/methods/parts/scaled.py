"""Weights that a task scales for itself inside remembered subspaces: W_eff = W + Σ_j W·B_j·(Q_j − I)·B_jᵀ.

B_j (n×k) are remembered directions, so W·B_j never changes, and Q_j (k×k) belongs to one task. What a task adds to W thus
stays as it is, whatever later tasks learn. Q_j is kept as D_j = Q_j − I, which starts at 0.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant.memory import LayerView, views_of

Pairs = Sequence[tuple[Tensor, Tensor]]  # (B, D)
Addition = Callable[[Tensor], Tensor]  # a layer's input → what is added to its output


@dataclass(frozen=True, eq=False)
class ScaledLayer:
    """A linear layer or convolution as the matrix [W | b] (outputs × inputs): a bias is the weight of an input of 1."""

    module: nn.Linear | nn.Conv2d
    view: LayerView
    parameters: tuple[nn.Parameter, ...]  # the weight, and the bias if there is one

    @classmethod
    def of(cls, module: nn.Module) -> "ScaledLayer | None":
        """Returns None for a layer that is no plain linear layer or convolution."""
        if not isinstance(module, nn.Linear | nn.Conv2d) or getattr(module, "groups", 1) > 1:
            return None
        (view,) = views_of(module) or []
        return cls(module, view, tuple(module.parameters()))

    def matrix(self, tensors: Sequence[Tensor]) -> Tensor:
        """Returns tensors shaped like the parameters as one matrix."""
        weight, *biases = tensors
        return torch.cat([self.view.matrix(weight)[0], *(bias[:, None] for bias in biases)], dim=1)

    def addition(self, pairs: Pairs) -> Addition:
        """Returns the function x ↦ Σ_j [W | b]·B_j·D_j·B_jᵀ·x, for the weights as they are now.

        It has a gradient for D and none for W, whose part inside B_j stays as it is. A batch of a linear layer mostly has
        fewer rows than the layer has outputs, so there x is multiplied first.
        """
        weights = self.matrix([parameter.detach() for parameter in self.parameters])
        if isinstance(self.module, nn.Linear):
            return partial(_multiplied, weights, pairs)
        matrix = reduce(torch.add, [((weights @ B) @ D) @ B.mT for B, D in pairs])
        bias = matrix[:, -1] if len(self.parameters) > 1 else None
        return partial(
            self.module._conv_forward, weight=self.view.tensor(matrix[None, :, : self.view.inputs]), bias=bias
        )


def _multiplied(weights: Tensor, pairs: Pairs, x: Tensor) -> Tensor:
    if weights.shape[1] > x.shape[-1]:
        x = F.pad(x, (0, 1), value=1.0)
    return reduce(torch.add, [((x @ B) @ D.mT) @ B.mT for B, D in pairs]) @ weights.mT


@contextmanager
def adding(additions: Mapping[ScaledLayer, Addition]) -> Iterator[None]:
    """Inside the block, each layer adds what the function makes of its input to its output."""

    def add(addition: Addition, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output + addition(inputs[0])

    with ExitStack() as hooks:
        for layer, addition in additions.items():
            hooks.enter_context(layer.module.register_forward_hook(partial(add, addition)))
        yield


class ScaleMatrices(nn.ParameterDict):
    """The matrices D of all tasks, by name. It takes any matrices from a saved state, since tasks add more of them.

    As a part of the network, they are restored with it when training stops early.
    """

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.zeros = like.new_zeros

    def add(self, name: str, size: int) -> None:
        """Adds a matrix that changes nothing yet."""
        self[name] = nn.Parameter(self.zeros(size, size))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        saved = {key.removeprefix(prefix): D for key, D in state_dict.items() if key.startswith(prefix)}
        for name in [name for name in self if name not in saved]:
            del self[name]
        for name, D in saved.items():
            if name not in self or self[name].shape != D.shape:
                self.add(name, len(D))
        super()._load_from_state_dict(state_dict, prefix, *rest)
