"""Elastic weight consolidation (Kirkpatrick et al., 2017): important weights are tied to their old values."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor

from remnant.data import Split
from remnant.models import Network
from remnant.options import Positive, number

from .parts.fisher import fisher_diagonal
from .parts.fixed_norm import FixedNorm


class EWC(FixedNorm):
    """SGD on loss + λ/2·Σ F(θ − θ*)², where θ* ended the last task and F is the mean of the tasks' Fisher diagonals.

    The sum runs over the parameters that all tasks move (`shared_parameters`). λF is cut off at 1/lr, which pulls a weight
    back to θ* in one step: beyond, SGD would overshoot θ*, and from 2/lr on diverge.

    Args:
        strength: λ.
        fisher_batch: How many examples' gradients are averaged before they are squared (see `fisher_diagonal`). 1 is the
            definition. The public implementation behind the paper's figures uses 20, and leaves dropout on, which enlarges
            the Fisher; here dropout is off.
    """

    name = "ewc"
    fisher: list[Tensor]
    last: list[Tensor]

    def __init__(
        self,
        network: Network,
        *,
        strength: Annotated[float, number(0, 1e9)] = 50.0,
        fisher_batch: Positive = 1,
        **options: Any,
    ) -> None:
        super().__init__(network, **options)
        self.strength, self.fisher_batch = strength, fisher_batch
        self.shared = self.shared_parameters()
        self.keep("fisher", [torch.zeros_like(p) for p in self.shared.values()], per_step=False)
        self.keep("last", [p.detach().clone() for p in self.shared.values()], per_step=False)
        self.stiffness = [torch.zeros_like(f) for f in self.fisher]

    def refresh(self) -> None:
        """Stiffness = min(λF, 1/lr)."""
        for stiffness, fisher in zip(self.stiffness, self.fisher, strict=True):
            torch.minimum(self.strength * fisher, 1 / self.lr, out=stiffness)

    def on_epoch_start(self, epoch: int, epochs: int, steps: int) -> None:
        self.refresh()  # the learning rate may have changed

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self.loss(x, y)
        gradients: dict[Tensor, Tensor] = dict(zip(self.parameters, self.gradients(loss), strict=True))
        shared = list(self.shared.values())
        away = torch._foreach_sub([p.detach() for p in shared], self.last)
        pulled = torch._foreach_addcmul([gradients[p] for p in shared], self.stiffness, away)
        gradients.update(zip(shared, pulled, strict=True))
        self.apply_gradients(list(gradients.values()))
        return loss.detach()

    def finish(self, task: int, train: Split) -> None:
        """F ← (F_new + t·F)/(t + 1) after t earlier tasks; θ* ← θ."""
        new = fisher_diagonal(self.network, self.shared, train, task, batch=self.fisher_batch)
        torch._foreach_lerp_(self.fisher, new, 1 / (task + 1))
        torch._foreach_copy_(self.last, [p.detach() for p in self.shared.values()])
