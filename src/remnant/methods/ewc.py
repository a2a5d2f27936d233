"""Elastic weight consolidation (Kirkpatrick et al., 2017): weights that mattered are tied to where they were."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from remnant.data import Split
from remnant.models import Network

from .parts.fisher import fisher_diagonal
from .parts.fixed_norm import FixedNorm


class EWC(FixedNorm):
    """SGD on loss + λ/2·Σ F(θ − θ*)², with θ* the weights the last task ended with and F the mean of the tasks' Fishers.

    The sum runs over what tasks share and move: the body without its norms, and a head that all use. Heads of their own
    are not in it: a past one does not move, and the present one has no past.

    λF is cut off at 1/lr, which pulls a weight all the way back to θ* in one step. Beyond, SGD would overshoot θ*, and
    from 2/lr on diverge.

    Args:
        strength: λ.
        fisher_batch: examples whose gradients are averaged before they are squared (see `fisher_diagonal`). 1 is the
            definition; 20 is what the public implementation does that the paper's figures were made with. That one leaves
            dropout on meanwhile, which makes the Fisher larger, above all of layers before a rate of 0.5; here it is off.
    """

    name = "ewc"

    def __init__(self, network: Network, *, lr: float, strength: float, fisher_batch: int = 1) -> None:
        super().__init__(network, lr=lr)
        self.strength, self.fisher_batch = strength, fisher_batch
        apart = [*self.norms, *(network.heads if network.multi_head else [])]
        outside = {id(p) for module in apart for p in module.parameters()}
        self.shared = {n: p for n, p in network.named_parameters() if id(p) not in outside and p.requires_grad}
        self.fisher = [torch.zeros_like(p) for p in self.shared.values()]  # nothing has mattered yet
        self.last = [p.detach().clone() for p in self.shared.values()]
        self.stiffness = [torch.zeros_like(f) for f in self.fisher]

    def start(self, task: int) -> None:
        super().start(task)
        self._stiffen()

    def on_epoch_start(self, epoch: int, epochs: int, steps: int) -> None:
        self._stiffen()  # the learning rate may have changed

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
        """F ← (F_new + t·F)/(t + 1) after t tasks before this one; θ* ← θ."""
        new = fisher_diagonal(self.network, self.shared, train, task, batch=self.fisher_batch)
        torch._foreach_lerp_(self.fisher, new, 1 / (task + 1))
        torch._foreach_copy_(self.last, [p.detach() for p in self.shared.values()])

    def _stiffen(self) -> None:
        """min(λF, 1/lr)."""
        for stiffness, fisher in zip(self.stiffness, self.fisher, strict=True):
            torch.minimum(self.strength * fisher, 1 / self.lr, out=stiffness)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.fisher, *self.last))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "fisher": self.fisher, "last": self.last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        torch._foreach_copy_([*self.fisher, *self.last], [*state["fisher"], *state["last"]])
        self._stiffen()
