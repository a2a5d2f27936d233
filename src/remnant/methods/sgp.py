"""Scaled gradient projection (Saha & Roy, 2023): a direction is protected as much as the tasks have used it."""

from typing import Annotated, Any

import torch

from remnant.memory import TaskInputs
from remnant.models import Network
from remnant.options import number

from .parts.measured import Measured

TINY = 1e-30


class SGP(Measured):
    """Steps along ∇W − ∇W·M·Λ·Mᵀ, where Λ has a weight λ in [0, 1] for each direction.

    After each task, every direction m, old and new, gets λ ← min(1, λ + (α + 1)·σ/(α·σ + σ_max)). Here σ = ‖X·m‖ for the
    inputs X of the task, σ_max is the largest of them, and the λ of a new direction starts at 0. For directions that are new
    with the task, σ are the singular values that they were found with. With α → ∞, all λ are 1, and SGP is GPM.
    """

    name = "sgp"

    def __init__(self, network: Network, *, alpha: Annotated[float, number(0, 1e15)] = 10.0, **options: Any) -> None:
        super().__init__(network, **options)
        self.alpha = alpha
        for subspace in self.subspaces():
            subspace.weights = subspace.weights  # a memory with weights keeps its directions and not their complement

    def measured(self, task: int, inputs: TaskInputs, old: int) -> None:
        sigma = inputs.along.clamp(min=0).sqrt()
        if not len(sigma):
            return
        gained = (self.alpha + 1) * sigma / (self.alpha * sigma + sigma.max()).clamp(min=TINY)
        before = inputs.subspace.weights.to(gained)
        before[old:] = 0
        inputs.subspace.weights = torch.clamp(before + gained, max=1)
