"""Elastic weight consolidation (Kirkpatrick et al., 2017): important weights are tied to their old values."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from remnant.data import Split
from remnant.models import Network
from remnant.options import Positive

from .parts.anchor import Anchored, Strength
from .parts.per_example import mean_over_examples


class EWC(Anchored):
    """SGD on loss + λ/2·Σ F(θ − θ*)², where θ* ended the last task and F is the mean of the tasks' Fisher diagonals.

    λ is the `strength`. λF is cut off at 1/lr (see `Anchored`).

    Gradients of `fisher_batch` examples are averaged before they are squared (see `fisher_diagonal`). 1 is the definition. The
    public code behind GPM's tables uses 20, and leaves dropout on, which enlarges the Fisher; here dropout is off.
    """

    name = "ewc"

    def __init__(
        self, network: Network, *, strength: Strength = 50.0, fisher_batch: Positive = 1, **options: Any
    ) -> None:
        super().__init__(network, strength=strength, **options)
        self.fisher_batch = fisher_batch

    def finish(self, task: int, train: Split) -> None:
        """F ← (F_new + t·F)/(t + 1) after t earlier tasks; θ* ← θ."""
        new = fisher_diagonal(self.network, self.shared, train, task, batch=self.fisher_batch)
        torch._foreach_lerp_(self.importance, new, 1 / (task + 1))
        self.anchor()


def fisher_diagonal(
    network: Network, parameters: Mapping[str, Tensor], train: Split, task: int, *, batch: int = 1
) -> list[Tensor]:
    """F = 1/|𝓑| · Σ_{B∈𝓑} (∇θ 1/|B| · Σ_{i∈B} log p(y_i|x_i, θ))², squared elementwise, with labels y_i and without dropout.

    Batches of one give the diagonal of the empirical Fisher information; in larger ones gradients cancel before they are
    squared, which gives about F/|B|.
    """
    return mean_over_examples(F.cross_entropy, torch.square, network, parameters, train, task, batch=batch)
