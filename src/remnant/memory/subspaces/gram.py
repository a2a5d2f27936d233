"""The Gram matrix RᵀR of a layer's input rows R, summed in float64 while batches stream by, and its leading eigenpairs.

Its eigenvectors are the singular vectors of the paper's sample matrix, so n² numbers are enough for any number of samples.
"""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from . import lanczos

BLOCK = 512  # columns per block of the triangle: a Gram matrix is symmetric, so half of it is enough
CHUNK = 2**22  # numbers converted to float64 at a time
LANCZOS_FROM = 1024  # a full decomposition of a smaller matrix is as fast
LANCZOS_SHARE = 0.34  # share of all directions beyond which a full decomposition is cheaper
WIDE, WIDE_SHARE = 3072, 0.6  # that share for matrices of at least this width


@dataclass(frozen=True)
class GroupGram:
    """The Gram matrix RᵀR of the rows of one group, which has one subspace. With few rows, it stores R itself.

    Attributes:
        tensor: RᵀR, or R.
        is_rows: Whether it is R, which is smaller while R has fewer rows than columns.
        exact: Whether the rows come from a float64 network: their SVD finds directions whose energy RᵀR would round away.
        rest: Energy that the rows lack because they are a sketch of more rows. Only its amount is known.
    """

    tensor: Tensor
    is_rows: bool = False
    exact: bool = False
    rest: Tensor | float = 0.0

    @classmethod
    def of(cls, gram: Tensor) -> Self:
        gram = torch.as_tensor(gram)
        if gram.ndim != 2 or gram.shape[0] != gram.shape[1]:
            raise ValueError(f"A Gram matrix is square (rowsᵀ @ rows); this one has shape {tuple(gram.shape)}.")
        return cls(gram.to(torch.float64))

    def energy(self) -> Tensor:
        """‖R‖² (Frobenius)."""
        return self.tensor.square().sum() + self.rest if self.is_rows else self.tensor.diagonal().sum()

    def outside(self, basis: Tensor, *, complement: bool = False) -> "GroupGram":
        """The Gram matrix of R̂ = R − R·M·Mᵀ (Eq. 8): RᵀR is projected on both sides, and R on one.

        With a basis N of M's complement it is that of R·N: the same rows R̂ in the coordinates of N's columns.
        """
        if complement:
            return replace(self, tensor=(self.tensor if self.is_rows else basis.mT @ self.tensor) @ basis)
        if self.is_rows:
            return replace(self, tensor=self.tensor - (self.tensor @ basis) @ basis.mT)
        inside = basis @ (basis.mT @ self.tensor)
        both = (inside @ basis) @ basis.mT
        return GroupGram(self.tensor - inside - inside.mT + both)

    def along(self, basis: Tensor) -> Tensor:
        """‖R·m‖² for every column m."""
        return (self.tensor @ basis).square().sum(0) if self.is_rows else (basis * (self.tensor @ basis)).sum(0)

    def spectrum(self, enough: float) -> tuple[Tensor, Tensor]:
        """The largest eigenvalues, until their sum reaches `enough`, and the eigenvectors that `directions` needs.

        It returns all of them where that is cheaper.
        """
        if self.exact:
            _, sizes, vectors = torch.linalg.svd(self.tensor, full_matrices=False)
            return sizes.square(), vectors.mT
        matrix = self.tensor @ self.tensor.mT if self.is_rows else self.tensor
        found, n = None, len(matrix)
        if n >= LANCZOS_FROM and enough < 0.999 * float(matrix.diagonal().sum()):
            most = int((WIDE_SHARE if n >= WIDE else LANCZOS_SHARE) * n)
            # k eigenvalues sum to at most √k·‖G‖, so Lanczos is not tried where it is certain to fail.
            if enough <= (most / lanczos.PER_DIRECTION) ** 0.5 * float(matrix.norm()):
                found = lanczos.leading(matrix, enough, most)
        values, vectors = found or (x.flip(-1) for x in torch.linalg.eigh(matrix))
        return values.clamp(min=0), vectors

    def directions(self, values: Tensor, vectors: Tensor, count: int) -> Tensor:
        """The first `count` eigenvectors of RᵀR as columns, from its `spectrum`."""
        if not self.is_rows or self.exact:
            return vectors[:, :count]
        return self.tensor.mT @ (vectors[:, :count] / values[:count].sqrt())  # u of RRᵀ gives Rᵀu/σ


class Gram:
    """Sums rowsᵀ·rows over batches, for each group of a layer."""

    missing = 0.0  # the share of energy that is not in the sum; a sketch lacks some

    def __init__(self, groups: int, size: int, device: torch.device) -> None:
        self.groups, self.size = groups, size
        # Some accelerators have no float64, so their rows are summed on the host.
        self.device = torch.device("cpu") if device.type == "mps" else device
        self.count = 0
        self._exact = True
        self._few = [torch.zeros(groups, 0, size, dtype=torch.float64, device=self.device)]
        self._sum: Tensor | None = None

    def add(self, rows: Tensor) -> None:
        """Takes `rows` of shape (groups, N, size)."""
        self.count += rows.shape[1]
        self._exact &= rows.dtype == torch.float64
        for part in rows.split(max(1, CHUNK // max(1, self.groups * self.size)), dim=1):
            few = self._sum is None and sum(kept.shape[1] for kept in self._few) + part.shape[1] < self.size
            used = None if few else _used_columns(part)
            # A copy even of float64: the model may change its input in place while the rows are kept.
            new = (part if used is None else part[:, :, used]).to(device=self.device, dtype=torch.float64, copy=True)
            if few:
                self._few.append(new)
                continue
            if self._sum is None:
                self._sum = new.new_zeros(self.groups, self.size, self.size)
                kept, self._few = torch.cat(self._few, dim=1), []
                if used is None:
                    new = torch.cat([kept, new], dim=1)
                else:
                    self._sum += kept.mT @ kept
            if used is not None:
                used = used.to(self.device)
                self._sum[:, used[:, None], used] += new.mT @ new
                continue
            for start in range(0, self.size, BLOCK):
                block = self._sum[:, start : start + BLOCK, start:]
                block.baddbmm_(new[:, :, start : start + BLOCK].mT, new[:, :, start:])

    def matrix(self) -> Tensor:
        """RᵀR of every group: (groups, size, size)."""
        if self._sum is None:
            rows = torch.cat(self._few, dim=1)
            return rows.mT @ rows
        return self._sum.triu() + self._sum.triu(1).mT

    def energy_of(self, stack: Tensor) -> Tensor:
        """‖W·Rᵀ‖² = tr(W·RᵀR·Wᵀ) of a stack of matrices W (groups, outputs, size), summed over the groups."""
        x = stack.to(device=self.device, dtype=torch.float64)
        if self._sum is None:
            return (x @ torch.cat(self._few, dim=1).mT).square().sum()
        return ((x @ self.matrix()) * x).sum().clamp(min=0)

    def is_finite(self) -> bool:
        """Whether no row held NaN or inf: each shows in the diagonal of RᵀR, whose sum is ‖R‖²."""
        if self._sum is None:
            return bool(torch.stack([part.square().sum() for part in self._few]).isfinite().all())
        return bool(self._sum.diagonal(dim1=1, dim2=2).isfinite().all())

    def replace(self, matrix: Tensor, count: int) -> None:
        """Replaces this process's sum by that of all processes."""
        self._few, self._sum, self.count = [], matrix, count

    def of_group(self, group: int) -> GroupGram:
        if self._sum is None:
            return GroupGram(torch.cat(self._few, dim=1)[group], is_rows=True, exact=self._exact)
        upper = self._sum[group]
        return GroupGram(upper.triu() + upper.triu(1).mT)


def _used_columns(rows: Tensor) -> Tensor | None:
    """The numbers of the columns that are not 0, if there are many rows and at least half of the columns are 0.

    Each output of a strided transposed convolution sees only every second or third weight of the kernel, for example.
    """
    _, count, size = rows.shape
    if 8 * count < size or 2 * int(rows[:, 0].any(dim=0).sum()) > size:
        return None
    used = rows.any(dim=1).any(dim=0).nonzero().flatten()
    return used if 2 * len(used) <= size else None


class Counts:
    """The Gram matrix of one-hot rows is diagonal: it counts how often each index occurred."""

    missing = 0.0

    def __init__(self, size: int, device: torch.device) -> None:
        self.count = 0
        self._counts = torch.zeros(size, dtype=torch.float64, device="cpu" if device.type == "mps" else device)

    def add(self, indices: Tensor) -> None:
        indices = indices.reshape(-1).to(self._counts.device)
        self._counts += torch.bincount(indices, minlength=len(self._counts)).to(torch.float64)
        self.count += indices.numel()

    def matrix(self) -> Tensor:
        return self._counts

    def energy_of(self, stack: Tensor) -> Tensor:
        return (stack.to(self._counts).square() * self._counts).sum()

    def is_finite(self) -> bool:
        return True

    def replace(self, counts: Tensor, count: int) -> None:
        self._counts, self.count = counts, count

    def of_group(self, group: int) -> Tensor:
        return self._counts
