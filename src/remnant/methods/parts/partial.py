"""Steps that move only some entries of a parameter, and forward passes that use only some units."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from remnant.models import Units

from ..base import Method


class PartlyFrozen(Method):
    """Each step is multiplied by `moving`: 1 where the entry may move, 0 where it stays. Others are not multiplied.

    For plain SGD it is the gradient that is multiplied. Other optimizers rescale gradients and add momentum and weight decay,
    so their steps are multiplied, and their gradients are 0 where an entry stays.
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


@contextmanager
def masked(units: Sequence[Units], masks: Sequence[Tensor]) -> Iterator[None]:
    """Multiplies the network's units by their masks inside the block."""

    def multiply(mask: Tensor, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output * mask.view(-1, *(1 for _ in output.shape[2:]))

    with ExitStack() as hooks:
        for each, mask in zip(units, masks, strict=True):
            hooks.enter_context(each.at.register_forward_hook(partial(multiply, mask)))
        yield
