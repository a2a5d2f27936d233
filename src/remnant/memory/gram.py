"""RᵀR of a layer's input rows R, in float64, while batches stream by.

The paper takes the SVD of the sample matrix itself. Its left singular vectors are the eigenvectors of the Gram
matrix and its squared singular values the eigenvalues, so n² numbers suffice however many samples there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .lanczos import leading

BLOCK = 512  # columns per block of the triangle; a Gram is symmetric, half of it is enough
CHUNK = 2**22  # numbers converted to float64 at a time


@dataclass(frozen=True)
class Spectrum:
    """The leading eigenvalues of a Gram, largest first, and the means to get their eigenvectors."""

    energies: Tensor
    vectors: Tensor
    rows: Tensor | None = None

    def leading(self, count: int) -> Tensor:
        """The first `count` eigenvectors of RᵀR, as columns."""
        if self.rows is None:
            return self.vectors[:, :count]
        # The vectors are those of RRᵀ; Rᵀu/σ carries them over.
        return self.rows.mT @ (self.vectors[:, :count] / self.energies[:count].sqrt())


@dataclass(frozen=True)
class Energy:
    """The Gram of one subspace's rows: the rows themselves while they are fewer than columns, else RᵀR."""

    matrix: Tensor | None = None
    rows: Tensor | None = None

    @classmethod
    def of(cls, gram: Tensor | Energy) -> Energy:
        if isinstance(gram, Energy):
            return gram
        gram = torch.as_tensor(gram)
        if gram.ndim != 2 or gram.shape[0] != gram.shape[1]:
            raise ValueError(f"A Gram matrix is square (rowsᵀ @ rows); this one has shape {tuple(gram.shape)}.")
        return cls(matrix=gram.to(torch.float64))

    @property
    def tensor(self) -> Tensor:
        tensor = self.matrix if self.rows is None else self.rows
        assert tensor is not None
        return tensor

    def total(self) -> Tensor:
        """‖R‖² (Frobenius)."""
        return self.tensor.diagonal().sum() if self.rows is None else self.tensor.square().sum()

    def outside(self, basis: Tensor) -> Energy:
        """Of R − R·M·Mᵀ: Eq. 8, on both sides of the Gram at once."""
        if self.rows is not None:
            return Energy(rows=self.rows - (self.rows @ basis) @ basis.mT)
        inside = basis @ (basis.mT @ self.tensor)
        both = (inside @ basis) @ basis.mT
        return Energy(matrix=self.tensor - inside - inside.mT + both)

    def through(self, basis: Tensor) -> Energy:
        """Of R·N: the same rows in the coordinates of N's columns."""
        if self.rows is not None:
            return Energy(rows=self.rows @ basis)
        return Energy(matrix=basis.mT @ self.tensor @ basis)

    def spectrum(self, enough: float) -> Spectrum:
        """The largest eigenvalues, as many as it takes for their sum to reach `enough`, or more."""
        small = self.tensor @ self.tensor.mT if self.rows is not None else self.tensor
        values, vectors = leading(small, enough)
        return Spectrum(values, vectors, self.rows)


class Gram:
    """Sums rowsᵀ·rows over batches, for each group of a layer."""

    def __init__(self, groups: int, size: int, device: torch.device) -> None:
        self.groups, self.size = groups, size
        # Some accelerators have no float64; their rows are summed on the host.
        self.device = torch.device("cpu") if device.type == "mps" else device
        self.count = 0
        self._few: list[Tensor] = []
        self._sum: Tensor | None = None

    def add(self, rows: Tensor) -> None:
        """Takes `rows` of shape (groups, N, size)."""
        step = max(1, CHUNK // max(1, self.groups * self.size))
        for part in rows.split(step, dim=1):
            # A copy even of float64: rows may be kept for a while, and the model may go on to change its input in place.
            self._add(part.to(device=self.device, dtype=torch.float64, copy=True))
        self.count += rows.shape[1]

    def _add(self, rows: Tensor) -> None:
        if self._sum is None:
            self._few.append(rows)
            if sum(part.shape[1] for part in self._few) < self.size:
                return
            rows, self._few = torch.cat(self._few, dim=1), []
            self._sum = rows.new_zeros(self.groups, self.size, self.size)
        for start in range(0, self.size, BLOCK):
            block = self._sum[:, start : start + BLOCK, start:]
            block.baddbmm_(rows[:, :, start : start + BLOCK].mT, rows[:, :, start:])

    def matrix(self) -> Tensor:
        """The whole of it, (groups, size, size)."""
        if self._sum is None:
            rows = torch.cat(self._few, dim=1) if self._few else self._nothing(0)
            return rows.mT @ rows
        return self._sum.triu() + self._sum.triu(1).mT

    def replace(self, matrix: Tensor) -> None:
        """Puts the sum over all ranks in place of this rank's."""
        self._few, self._sum = [], matrix

    def energy(self, group: int) -> Energy:
        if self._sum is None:
            return Energy(rows=torch.cat(self._few, dim=1)[group] if self._few else self._nothing(0)[group])
        upper = self._sum[group]
        return Energy(matrix=upper.triu() + upper.triu(1).mT)

    def _nothing(self, rows: int) -> Tensor:
        return torch.zeros(self.groups, rows, self.size, dtype=torch.float64, device=self.device)


class Counts:
    """The Gram of one-hot rows is diagonal: how often each index came."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        self.count = 0
        self._counts = torch.zeros(size, dtype=torch.float64, device="cpu" if device.type == "mps" else device)

    def add(self, indices: Tensor) -> None:
        indices = indices.reshape(-1).to(self._counts.device)
        self._counts += torch.bincount(indices, minlength=self.size).to(torch.float64)
        self.count += indices.numel()

    def matrix(self) -> Tensor:
        return self._counts

    def replace(self, counts: Tensor) -> None:
        self._counts = counts

    def energy(self, group: int) -> Tensor:
        return self._counts
