"""Memory aware synapses (Aljundi et al., 2018): a weight is important if the outputs are sensitive to it."""

from typing import Any

import torch
from torch import Tensor

from remnant.data import Split
from remnant.models import Network

from .parts.anchor import Anchored, Strength
from .parts.per_example import mean_over_examples


class MAS(Anchored):
    """SGD on loss + λ·Σ Ω(θ − θ*)², where θ* ended the last task. λ is the `strength`.

    After each task, Ω gains the mean of |∂‖f(x)‖²/∂θ| over its training examples x, where f are the logits of the task. It
    needs no labels. 2λΩ is cut off at 1/lr (see `Anchored`).
    """

    name = "mas"
    half = False

    def __init__(self, network: Network, *, strength: Strength = 1.0, **options: Any) -> None:
        super().__init__(network, strength=strength, **options)

    def finish(self, task: int, train: Split) -> None:
        """Ω ← Ω + Ω_new; θ* ← θ."""
        new = mean_over_examples(squared_norm, torch.abs, self.network, self.shared, train, task)
        torch._foreach_add_(self.importance, new)
        self.anchor()


def squared_norm(logits: Tensor, y: Tensor) -> Tensor:
    return logits.square().sum()
