"""Conceptors (Jaeger, 2014): soft projections C = R·(R + a⁻²·I)⁻¹ onto the directions that inputs use, and their logic.

R is the mean of x·xᵀ over the inputs, and a the aperture. Here a conceptor is given by its odds C·(I − C)⁻¹ = a²·R: the odds
of "C or B" are the sum of both odds, and the odds of "not C" are the inverse of C's.
"""

import torch
from torch import Tensor

SURE = 1 - 1e-6  # the largest eigenvalue whose odds are taken
STEP = 1.1  # the factor by which an aperture rises


def odds(vectors: Tensor, values: Tensor) -> Tensor:
    """Returns the odds of the conceptor with these eigenvectors and eigenvalues."""
    values = values.double().clamp(max=SURE)
    return (vectors.double() * (values / (1 - values))) @ vectors.double().mT


def eigenpairs(odds: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the eigenvalues of a conceptor, the largest first, and its eigenvectors as columns."""
    values, vectors = torch.linalg.eigh(odds)
    values = values.flip(0).clamp(min=0)
    return values / (1 + values), vectors.flip(1)


def both(one: Tensor, other: Tensor) -> Tensor:
    """Returns the odds of "C and B", which is not (not C or not B): (odds(C)⁻¹ + odds(B)⁻¹)⁻¹."""
    least = (1 - SURE) * torch.eye(len(one), dtype=one.dtype, device=one.device)  # so that inverses exist
    inverses = torch.linalg.inv(torch.stack([one, other]) + least)
    joined: Tensor = torch.linalg.inv(inverses.sum(0))
    return joined


def wide_enough(gram: Tensor, aperture: float, share: float) -> float:
    """Returns the aperture, raised until ‖X·C‖ ≥ `share`·‖X‖ for inputs X with this mean Gram matrix."""
    energies = torch.linalg.eigvalsh(gram).clamp(min=0)
    while True:
        kept = energies / (energies + aperture**-2)
        if float((energies * kept.square()).sum()) >= share**2 * float(energies.sum()):
            return aperture
        aperture *= STEP
