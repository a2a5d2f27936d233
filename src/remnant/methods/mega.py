"""MEGA (Guo et al., 2020, "Improved schemes for episodic memory-based lifelong learning"): losses weigh old and new tasks.

Both schemes mix g, the gradient on the batch, with r, the gradient on a batch from memory (as in A-GEM). ℓ and ℓ_r are the
losses of these batches. The batch with the higher loss weighs more.
"""

from typing import Annotated, Any

import torch
from torch import Tensor

from remnant.models import Network
from remnant.options import number

from .agem import AGEM

SmallLoss = Annotated[float, number(0, 100, above=True)]


class MEGA1(AGEM):
    """MEGA-I (Guo et al., 2020): replay gradients weigh more where the old tasks have a higher loss than the batch.

    The step follows g + (ℓ_r/ℓ)·r, or r alone if ℓ ≤ `sensitivity`, because the batch is then learnt already.
    """

    name = "mega-i"

    def __init__(self, network: Network, *, sensitivity: SmallLoss = 1e-3, **options: Any) -> None:
        super().__init__(network, **options)
        self.sensitivity = sensitivity

    def combined(self, gradient: Tensor, reference: Tensor, loss: Tensor, reference_loss: Tensor) -> Tensor:
        learnt = loss <= self.sensitivity
        weight = torch.where(learnt, 1, reference_loss / loss.clamp(min=self.sensitivity))
        return gradient * ~learnt + weight * reference


class MEGA2(AGEM):
    """MEGA-II (Guo et al., 2020): the gradient is turned towards the replay gradient, as far as their losses suggest.

    g keeps its length and is turned by the angle φ in [0, π/2] that maximises ℓ·cos φ + ℓ_r·cos(φ_r − φ), where φ_r is the
    angle between g and r. The sum to maximise is ℓ times the cosine to g plus ℓ_r times the cosine to r. It equals
    a·cos φ + b·sin φ with a = ℓ + ℓ_r·cos φ_r and b = ℓ_r·sin φ_r ≥ 0, so φ = atan2(b, a) is the best angle, cut off at π/2.
    The paper finds it by gradient steps from random starts.
    """

    name = "mega-ii"

    def combined(self, gradient: Tensor, reference: Tensor, loss: Tensor, reference_loss: Tensor) -> Tensor:
        return turned(gradient, reference, loss, reference_loss)


def turned(gradient: Tensor, reference: Tensor, loss: Tensor, reference_loss: Tensor) -> Tensor:
    """Returns g·cos φ + ‖g‖·sin φ·u, where u is the unit vector of the part of r that is orthogonal to g."""
    tiny = torch.finfo(gradient.dtype).tiny
    product, square = torch.linalg.vecdot(torch.stack([reference, gradient]), gradient)
    across = reference.addcmul(product / square.clamp(min=tiny), gradient, value=-1)
    length, height = square.sqrt(), torch.linalg.vector_norm(across)
    between = torch.atan2(height * length, product)  # φ_r
    angle = torch.atan2(reference_loss * between.sin(), loss + reference_loss * between.cos()).clamp(max=torch.pi / 2)
    return gradient * angle.cos() + across * (length * angle.sin() / height.clamp(min=tiny))
