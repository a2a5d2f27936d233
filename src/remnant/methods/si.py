"""Synaptic intelligence (Zenke et al., 2017): a weight is important if the loss fell while it moved."""

from typing import Annotated, Any

import torch
from torch import Tensor

from remnant.data import Split
from remnant.models import Network
from remnant.options import number

from .base import Method
from .parts.anchor import Anchored, Strength

Damping = Annotated[float, number(0, 1000, above=True)]


class SI(Anchored):
    """SGD on loss + c·Σ Ω(θ − θ*)², where θ* ended the last task. c is the `strength`, ξ the `damping`.

    ω = Σ −∂loss/∂θ·Δθ over a task's steps credits each weight with its share of the fall of the loss. ∂loss/∂θ leaves the
    penalty out, and Δθ is the whole step. After the task, Ω ← max(Ω + ω/(Δ² + ξ), 0), where Δ = θ − θ* and a negative Ω would
    push a weight away from θ*. 2cΩ is cut off at 1/lr (see `Anchored`).

    If early stopping goes back to an earlier epoch, ω also holds the steps after it, which are small by then.
    """

    name = "si"
    half = False
    path: list[Tensor]

    def __init__(self, network: Network, *, strength: Strength = 0.1, damping: Damping = 0.1, **options: Any) -> None:
        super().__init__(network, strength=strength, **options)
        self.damping = damping
        self.keep("path", [torch.zeros_like(p) for p in self.shared.values()])  # ω

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        shared = [p.detach() for p in self.shared.values()]
        loss = self.loss(x, y)
        gradients = Method.gradients(self, loss)
        of_loss = [gradients[p] for p in self.shared.values()]
        before = torch._foreach_mul(shared, 1.0)
        self.apply_gradients(self.pulled(gradients))
        torch._foreach_addcmul_(self.path, of_loss, torch._foreach_sub(before, shared))
        return loss.detach()

    def finish(self, task: int, train: Split) -> None:
        """Ω ← max(Ω + ω/(Δ² + ξ), 0); ω ← 0; θ* ← θ."""
        for importance, path, p, last in zip(self.importance, self.path, self.shared.values(), self.last, strict=True):
            importance.addcdiv_(path, (p.detach() - last).square() + self.damping).clamp_(min=0)
        torch._foreach_zero_(self.path)
        self.anchor()
