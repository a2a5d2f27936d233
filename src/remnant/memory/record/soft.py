"""Soft directions (SGP; Saha & Roy, 2023): the memory protects a direction as much as the tasks have used it."""

from typing import Any

import torch.nn.functional as F

from ..subspaces.axes import AxisSubspace
from ..subspaces.subspace import Subspace
from ..weights.protected import ProtectedWeight

TINY = 1e-30  # instead of 0, by which nothing can be divided


def grow_softly(
    alpha: float, rule: str, weight: ProtectedWeight, subspace: Subspace, gram: Any, group: int, threshold: float
) -> None:
    """Adds a task's directions (Eq. 5, 9), and raises the weight λ of all by how much the task's inputs X use them.

    λ ← min(1, λ + (α+1)·σ / (α·σ + σ_max)) for every direction m, where σ = ‖X·m‖, σ_max is the largest of them, and the λ
    of a new direction starts at 0. With α → ∞ all λ are 1, as in GPM.
    """
    before, energy = subspace.copy(), gram.energy(group)
    subspace.grow(energy, threshold, rule)
    if isinstance(subspace, AxisSubspace):
        used = subspace._stored > 0
        squares, old = energy[used.to(energy.device)], before._stored[used]
    else:
        squares = energy.along(subspace.basis.to(energy.tensor))
        old = F.pad(before.weights, (0, subspace.rank - before.rank))
    if len(squares):
        sigma = squares.clamp(min=0).sqrt()
        gained = (alpha + 1) * sigma / (alpha * sigma + sigma.max()).clamp(min=TINY)
        subspace.weights = (old.to(gained) + gained).clamp(max=1)
