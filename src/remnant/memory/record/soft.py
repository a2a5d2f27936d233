"""Soft directions (SGP; Saha & Roy, 2023): the memory protects a direction as much as the tasks have used it."""

import torch.nn.functional as F

from ..subspaces.axes import AxisSubspace
from .inputs import TaskInputs

TINY = 1e-30  # a denominator of 0 becomes this


def grow_softly(alpha: float, rule: str, inputs: TaskInputs, threshold: float) -> None:
    """Adds a task's directions (Eq. 5, 9), and raises the weight λ of all by how much the task's inputs X use them.

    λ ← min(1, λ + (α+1)·σ / (α·σ + σ_max)) for every direction m, where σ = ‖X·m‖, σ_max is the largest of them, and the λ
    of a new direction starts at 0. With α → ∞ all λ are 1, as in GPM.
    """
    subspace, before = inputs.subspace, inputs.subspace.copy()
    subspace.grow(inputs.rows_gram, threshold, rule)
    if isinstance(subspace, AxisSubspace):
        old = before._stored[subspace._stored > 0]
    else:
        old = F.pad(before.weights, (0, subspace.rank - before.rank))
    squares = inputs.along
    if len(squares):
        sigma = squares.clamp(min=0).sqrt()
        gained = (alpha + 1) * sigma / (alpha * sigma + sigma.max()).clamp(min=TINY)
        subspace.weights = (old.to(gained) + gained).clamp(max=1)
