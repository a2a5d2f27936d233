"""Weights that a task scales for itself inside remembered subspaces: W_eff = W + Σ_j W·B_j·(Q_j − I)·B_jᵀ.

B_j (n×k) are remembered directions, so W·B_j never changes, and Q_j (k×k) belongs to one task. So later tasks do not change
what a task adds to W. Q_j is kept as D_j = Q_j − I, which starts at 0.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant.memory import LayerView, views_of

Addition = Callable[[Tensor], Tensor]  # a layer's input → what is added to its output


class Scaling(NamedTuple):
    """What a task adds to one layer: Σ_j W·B_j·D_j·B_jᵀ."""

    basis: Tensor  # B = [B_1 | B_2 | …]
    image: Tensor  # W·B, a constant, or with a gradient for W where W·B may still change
    matrices: Sequence[Tensor]  # D_j

    def multiplied(self, x: Tensor, *, transposed: bool = False) -> Tensor:
        """Returns [x_1·D_1 | x_2·D_2 | …] for x = [x_1 | x_2 | …], or the same with D_jᵀ."""
        parts = x.split([len(D) for D in self.matrices], dim=-1)
        products = [part @ (D.mT if transposed else D) for part, D in zip(parts, self.matrices, strict=True)]
        return torch.cat(products, dim=-1) if len(products) > 1 else products[0]


@dataclass(frozen=True, eq=False)
class ScaledLayer:
    """A linear layer or convolution as the matrix [W | b] (outputs × inputs): a bias is the weight of an input of 1."""

    module: nn.Linear | nn.Conv2d
    view: LayerView
    parameters: tuple[nn.Parameter, ...]  # the weight, and the bias if there is one

    @classmethod
    def of(cls, module: nn.Module | None) -> "ScaledLayer | None":
        """Returns None for a layer that is not a plain linear layer or convolution."""
        if not isinstance(module, nn.Linear | nn.Conv2d) or getattr(module, "groups", 1) > 1:
            return None
        (view,) = views_of(module) or []
        return cls(module, view, tuple(module.parameters()))

    @classmethod
    def among(cls, network: nn.Module, names: Iterable[str]) -> dict[str, "ScaledLayer"]:
        """Returns those of the named modules that are plain linear layers or convolutions."""
        modules = dict(network.named_modules())
        found = {name: cls.of(modules.get(name)) for name in names}
        return {name: layer for name, layer in found.items() if layer is not None}

    def matrix(self, tensors: Sequence[Tensor]) -> Tensor:
        """Returns tensors shaped like the parameters as one matrix."""
        weight, *biases = tensors
        return torch.cat([self.view.matrix(weight)[0], *(bias[:, None] for bias in biases)], dim=1)

    def tensors(self, matrix: Tensor) -> list[Tensor]:
        """Returns a matrix as tensors shaped like the parameters: undoes `matrix`."""
        parts = [self.view.tensor(matrix[None, :, : self.view.inputs]), matrix[:, -1]]
        return parts[: len(self.parameters)]

    @property
    def weights(self) -> Tensor:
        """The matrix itself."""
        return self.matrix(self.parameters)

    @torch.no_grad()
    def image(self, basis: Tensor) -> Tensor:
        """Returns W·B."""
        return self.weights @ basis

    def gradient(self, gradients: Mapping[Tensor, Tensor]) -> Tensor:
        """Returns the gradient of this layer as a matrix."""
        return self.matrix([gradients[p] for p in self.parameters])

    def by_parameter(self, matrix: Tensor) -> dict[Tensor, Tensor]:
        """Returns the part of a matrix that belongs to each parameter: undoes `gradient`."""
        return dict(zip(self.parameters, self.tensors(matrix), strict=True))

    def addition(self, scaling: Scaling) -> Addition:
        """Returns the function x ↦ Σ_j W·B_j·D_j·B_jᵀ·x. Only D has a gradient unless W·B_j may change (see `Scaling`)."""
        if isinstance(self.module, nn.Linear):  # a batch usually has fewer rows than outputs, so x is multiplied first
            return partial(_multiplied, scaling)
        matrix = scaling.multiplied(scaling.image) @ scaling.basis.mT
        weight, *biases = self.tensors(matrix)
        return partial(self.module._conv_forward, weight=weight, bias=biases[0] if biases else None)


def _multiplied(scaling: Scaling, x: Tensor) -> Tensor:
    if len(scaling.basis) > x.shape[-1]:
        x = F.pad(x, (0, 1), value=1.0)
    return scaling.multiplied(x @ scaling.basis, transposed=True) @ scaling.image.mT


@contextmanager
def adding(scalings: Mapping[ScaledLayer, Scaling]) -> Iterator[None]:
    """Inside the block, the layers compute with scaled weights."""

    def add(addition: Addition, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output + addition(inputs[0])

    with ExitStack() as hooks:
        for layer, scaling in scalings.items():
            hooks.enter_context(layer.module.register_forward_hook(partial(add, layer.addition(scaling))))
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
