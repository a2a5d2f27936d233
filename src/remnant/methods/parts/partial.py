"""Steps that move only some entries of a parameter, and forward passes that use only some units."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from remnant.models import Network, Units

from ..base import Method


class PartlyFrozen(Method):
    """Multiplies each step by `moving`: 1 where the entry may move, 0 where it stays. Other parameters move freely.

    With plain SGD the gradient is multiplied. Other optimizers rescale gradients and add momentum and weight decay, so their
    steps are multiplied, and their gradients are 0 where an entry stays.
    """

    moving: dict[nn.Parameter, Tensor]

    def gradients(self, loss: Tensor) -> dict[Tensor, Tensor]:
        gradients = super().gradients(loss)
        covered = [p for p in self.moving if p in gradients]
        shares = [self.moving[p] for p in covered]
        shares = shares if self.uses_plain_sgd else list(torch._foreach_ceil(shares))
        moved = torch._foreach_mul([gradients[p] for p in covered], shares)
        return gradients | dict(zip(covered, moved, strict=True))

    @torch.no_grad()
    def apply_gradients(self, gradients: dict[Tensor, Tensor]) -> None:
        before = {} if self.uses_plain_sgd else {p: p.detach().clone() for p in self.moving}
        super().apply_gradients(gradients)
        for parameter, old in before.items():
            parameter.copy_(torch.lerp(old, parameter, self.moving[parameter]))


class Subnetworks(PartlyFrozen):
    """Each task answers with some entries of the weights that all tasks share. Biases and norms belong to the first task."""

    freezes_norms = True

    def __init__(self, network: Network, **options: Any) -> None:
        super().__init__(network, **options)
        shared = self.shared_parameters()
        self.weights = {name: p for name, p in shared.items() if p.ndim > 1}
        self.biases = {p for p in shared.values() if p.ndim == 1}
        self.moving = {p: torch.ones_like(p, requires_grad=False) for p in self.weights.values()}

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for p in super().parameters if self.task == 0 or p not in self.biases]

    def subnetwork(self, masks: Iterable[Tensor], x: Tensor, task: int) -> Tensor:
        """Returns the outputs of the network with its weights multiplied by their masks."""
        weights = {name: weight * mask for (name, weight), mask in zip(self.weights.items(), masks, strict=True)}
        logits: Tensor = functional_call(self.network, weights, (x, task))
        return logits


def of_rows(units: Tensor, weight: Tensor) -> Tensor:
    """Returns one value per output unit in a shape that broadcasts to the weight."""
    return units.view(-1, *(1 for _ in weight.shape[1:]))


def of_columns(units: Tensor, weight: Tensor) -> Tensor:
    """Returns one value per input unit in a shape that broadcasts to the weight, even if channels were flattened."""
    columns = units.repeat_interleave(weight.shape[1] // len(units))  # a flattened channel feeds several adjacent ones
    return columns.view(-1, *(1 for _ in weight.shape[2:]))


@contextmanager
def masked(units: Sequence[Units], masks: Sequence[Tensor]) -> Iterator[None]:
    """Multiplies the network's units by their masks inside the block."""

    def multiply(mask: Tensor, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output * mask.view(-1, *(1 for _ in output.shape[2:]))

    with ExitStack() as hooks:
        for each, mask in zip(units, masks, strict=True):
            hooks.enter_context(each.at.register_forward_hook(partial(multiply, mask)))
        yield
