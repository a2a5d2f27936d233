"""Scaled gradient projection (Saha & Roy, 2023): a direction is protected as much as the tasks have used it."""

from typing import Annotated, Any

from remnant.models import Network
from remnant.options import number

from .gpm import GradientProjection


class SGP(GradientProjection):
    """Steps along ∇W − ∇W·M·Λ·Mᵀ, where Λ has a weight λ in [0, 1] for each direction (`GPM(…, soft=alpha)`).

    After each task, every direction m, old and new, gets λ ← min(1, λ + (α + 1)·σ/(α·σ + σ_max)). Here σ = ‖X·m‖ for the
    inputs X of the task, σ_max is the largest of them, and the λ of a new direction starts at 0. With α → ∞, all λ are 1, and
    SGP is GPM.
    """

    name = "sgp"

    def __init__(self, network: Network, *, alpha: Annotated[float, number(0, 1e15)] = 10.0, **options: Any) -> None:
        self.soft = alpha
        super().__init__(network, **options)
