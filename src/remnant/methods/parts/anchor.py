"""A quadratic pull towards the weights that ended the last task, as strong as each weight is important."""

from typing import Annotated, Any

import torch
from torch import Tensor

from remnant.models import Network
from remnant.options import number

from ..base import Method

Strength = Annotated[float, number(0, 1e9)]


class Anchored(Method):
    """SGD on loss + ½·Σ κ(θ − θ*)², where θ* ended the last task and κ = strength·importance, one number per weight.

    The sum runs over the parameters that all tasks move (`shared_parameters`). κ is cut off at 1/lr, which pulls a weight
    back to θ* in one step: with a larger κ, SGD would overshoot θ*, and diverge from 2/lr on. A subclass updates the
    importance in `finish` and calls `anchor`.
    """

    freezes_norms = True
    half = True  # False where a paper's penalty lacks the ½, so that κ is twice as large
    importance: list[Tensor]
    last: list[Tensor]

    def __init__(self, network: Network, *, strength: Strength = 1.0, **options: Any) -> None:
        super().__init__(network, **options)
        self.strength = strength
        self.shared = self.shared_parameters()
        self.keep("importance", [torch.zeros_like(p) for p in self.shared.values()], per_step=False)
        self.keep("last", [p.detach().clone() for p in self.shared.values()], per_step=False)
        self.stiffness = [torch.zeros_like(i) for i in self.importance]

    def refresh(self) -> None:
        """κ = min(strength·importance, 1/lr)."""
        strength = self.strength if self.half else 2 * self.strength
        for stiffness, importance in zip(self.stiffness, self.importance, strict=True):
            torch.minimum(strength * importance, 1 / self.lr, out=stiffness)

    def on_epoch_start(self, epoch: int, epochs: int, steps: int) -> None:
        self.refresh()  # the learning rate may have changed

    def gradients(self, loss: Tensor) -> dict[Tensor, Tensor]:
        return self.pulled(super().gradients(loss))

    def pulled(self, gradients: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """∇loss + κ(θ − θ*)."""
        shared = list(self.shared.values())
        away = torch._foreach_sub([p.detach() for p in shared], self.last)
        pulled = torch._foreach_addcmul([gradients[p] for p in shared], self.stiffness, away)
        return gradients | dict(zip(shared, pulled, strict=True))

    def anchor(self) -> None:
        """θ* ← θ."""
        torch._foreach_copy_(self.last, [p.detach() for p in self.shared.values()])
