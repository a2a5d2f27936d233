"""Memory aware synapses (Aljundi et al., 2018): a weight is important if the outputs are sensitive to it."""

from typing import Any

import torch
from torch import Tensor

from remnant.data import Split
from remnant.models import Network
from remnant.options import Positive

from .parts.anchor import Anchored, Strength
from .parts.per_example import mean_over_examples


class MAS(Anchored):
    """SGD on loss + λ·Σ Ω(θ − θ*)², where θ* ended the last task. λ is the `strength`.

    After each task, Ω gains the mean of |∂‖f(x)‖²/∂θ|, where f are the logits of the task and x are up to `samples` random
    training examples. It needs no labels. 2λΩ is cut off at 1/lr (see `Anchored`).
    """

    name = "mas"
    half = False

    def __init__(self, network: Network, *, strength: Strength = 1.0, samples: Positive = 1000, **options: Any) -> None:
        super().__init__(network, strength=strength, **options)
        self.samples = samples

    def finish(self, task: int, train: Split) -> None:
        """Ω ← Ω + Ω_new; θ* ← θ."""
        chosen = torch.randperm(len(train), device=self.device)[: self.samples]
        examples = Split.of(train.x[chosen], train.y[chosen])
        new = mean_over_examples(squared_norm, torch.abs, self.network, self.shared, examples, task)
        torch._foreach_add_(self.importance, new)
        self.anchor()


def squared_norm(logits: Tensor, y: Tensor) -> Tensor:
    return logits.square().sum()
