"""The Gram matrix RᵀR of a layer's input rows R, summed in float64 while batches stream by, and its leading eigenpairs.

Its eigenvectors are the singular vectors of the paper's sample matrix, so n² numbers are enough for any number of samples.
"""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

BLOCK = 512  # columns per block of the triangle: a Gram matrix is symmetric, so half of it is enough
CHUNK = 2**22  # numbers converted to float64 at a time
LANCZOS_FROM = 1024  # a full decomposition of a smaller matrix is as fast
LANCZOS_BLOCK = 48
LANCZOS_SHARE = 0.34  # share of all directions beyond which a full decomposition is cheaper
WIDE, WIDE_SHARE = 3072, 0.6  # the same share from this width on
PER_DIRECTION = 3  # Lanczos needs about three directions for each one that it finds
ENOUGH_TO_SPAN = 2  # times as many rows as columns usually span all of them
PRECISION = 1e-12  # residual ‖Gv − λv‖ relative to the largest eigenvalue, as a full decomposition leaves


@dataclass(frozen=True)
class Energy:
    """The Gram matrix of one subspace's rows R, as RᵀR, or as R itself while R has fewer rows than columns.

    `exact` rows are those of a float64 network: their SVD finds directions whose energy RᵀR would round away.
    `rest` is energy of which only the amount is known, because the rows are a sketch of more rows.
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

    def total(self) -> Tensor:
        """‖R‖² (Frobenius)."""
        return self.tensor.square().sum() + self.rest if self.is_rows else self.tensor.diagonal().sum()

    def outside(self, basis: Tensor, *, complement: bool = False) -> "Energy":
        """The energy of R̂ = R − R·M·Mᵀ (Eq. 8); for a Gram matrix, on both of its sides at once.

        With a basis N of M's complement it is R·N: the same rows R̂ in the coordinates of N's columns.
        """
        if complement:
            return replace(self, tensor=(self.tensor if self.is_rows else basis.mT @ self.tensor) @ basis)
        if self.is_rows:
            return replace(self, tensor=self.tensor - (self.tensor @ basis) @ basis.mT)
        inside = basis @ (basis.mT @ self.tensor)
        both = (inside @ basis) @ basis.mT
        return Energy(self.tensor - inside - inside.mT + both)

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
        found, n = None, matrix.shape[0]
        if n >= LANCZOS_FROM and enough < 0.999 * float(matrix.diagonal().sum()):
            most = int((WIDE_SHARE if n >= WIDE else LANCZOS_SHARE) * n)
            # k eigenvalues sum to at most √k·‖G‖, so Lanczos is not tried where it is certain to fail.
            if enough <= (most / PER_DIRECTION) ** 0.5 * float(matrix.norm()):
                found = _lanczos(matrix, enough, most)
        values, vectors = found or _descending(matrix)
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

    def energy(self, group: int) -> Energy:
        if self._sum is None:
            return Energy(torch.cat(self._few, dim=1)[group], is_rows=True, exact=self._exact)
        upper = self._sum[group]
        return Energy(upper.triu() + upper.triu(1).mT)


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

    def energy(self, group: int) -> Tensor:
        return self._counts


def _descending(matrix: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(matrix)
    return values.flip(0), vectors.flip(1)


def _lanczos(matrix: Tensor, enough: float, most: int) -> tuple[Tensor, Tensor] | None:
    """Block Lanczos: grows an orthonormal basis V of the Krylov space of a random block until its Ritz pairs are exact."""
    n = matrix.shape[0]
    start = torch.randn(n, LANCZOS_BLOCK, generator=torch.Generator().manual_seed(n), dtype=matrix.dtype, device="cpu")
    block = torch.linalg.qr(start.to(matrix.device))[0]
    columns = matrix.new_empty(n, most + LANCZOS_BLOCK)
    small = matrix.new_zeros(most + LANCZOS_BLOCK, most + LANCZOS_BLOCK)  # VᵀGV
    size = checked = 0
    while size < most:
        columns[:, size : size + LANCZOS_BLOCK] = block
        before, size = size, size + LANCZOS_BLOCK
        basis = columns[:, :size]
        image = matrix @ block
        overlap = basis.mT @ image
        image = image - basis @ overlap
        again = basis.mT @ image  # a second pass: the rounding of one pass would grow from block to block
        block, coupling = torch.linalg.qr(image - basis @ again)
        small[:size, before:size] = overlap + again
        small[before:size, :size] = (overlap + again).mT
        if size < 1.15 * checked or float(small.diagonal()[:size].sum()) < enough:
            continue
        checked = size
        values, vectors = _descending(small[:size, :size])
        count = int((values.cumsum(0) < enough).sum()) + 2  # one more than needed, so that the cut is certain
        if PER_DIRECTION * count > most:
            return None
        residual = (coupling @ vectors[before:, :count]).norm(dim=0).max() / values[0]
        if count <= before and float(residual) < PRECISION:
            return values[:count], basis @ vectors[:, :count]
    return None


def outside_rows(rows: list[Tensor], eps: float, stack: Tensor) -> Tensor:
    """The part of a stack (groups, outputs, n) that gives 0 for every row (or one-hot index), up to a rounding of eps."""
    rows = [part for part in rows if part.numel()]
    if not rows:
        return stack
    if not rows[0].is_floating_point():
        return stack.index_fill(2, torch.cat([part.flatten() for part in rows]).unique(), 0)
    tolerance = min(8 * eps, 1e-3)
    if tolerance < 1e-7:
        energies = [Energy(own.double(), is_rows=True, exact=True) for own in torch.cat(rows, dim=1)]
    else:  # exact to 1e-8, and faster
        gram = Gram(len(stack), stack.shape[2], stack.device)
        for part in rows:
            gram.add(part)
        energies = [gram.energy(group) for group in range(len(stack))]
    outside = []
    for matrix, energy in zip(stack, energies, strict=True):
        if energy.exact:
            basis, sizes, _ = torch.linalg.svd(energy.tensor.mT, full_matrices=False)
        elif energy.is_rows:
            values, vectors = torch.linalg.eigh(energy.tensor @ energy.tensor.mT)  # a GPU's SVD takes ten times as long
            sizes = values.clamp(min=0).sqrt()
            basis = energy.tensor.mT @ (vectors / sizes.clamp(min=torch.finfo(torch.float64).tiny))
        else:
            least = tolerance**2 * energy.total() * torch.eye(stack.shape[2], dtype=torch.float64, device=stack.device)
            if not int(torch.linalg.cholesky_ex(energy.tensor - least)[1]):
                outside.append(torch.zeros_like(matrix))  # the rows have more than the tolerance in every direction
                continue
            values, basis = torch.linalg.eigh(energy.tensor)
            sizes = values.clamp(min=0).sqrt()
        basis = basis[:, sizes > tolerance * sizes.max()]
        for _ in range(2):  # once leaves rounding behind
            matrix = matrix - (matrix @ basis) @ basis.mT
        outside.append(matrix)
    return torch.stack(outside)


def span_everything(rows: list[Tensor], eps: float) -> bool:
    """Whether `outside_rows` would leave nothing, because some of the rows already reach every direction of every group."""
    groups, _, size = rows[0].shape if rows and rows[0].is_floating_point() else (0, 0, 0)
    step = max(1, sum(part.shape[1] for part in rows) // max(1, ENOUGH_TO_SPAN * size))
    some = torch.cat([part[:, ::step] for part in rows], dim=1) if groups else torch.zeros(0, 0, 1, device="cpu")
    tolerance = min(8 * eps, 1e-3)
    if some.shape[1] < size or not groups or tolerance < 1e-7:
        return False
    gram = Gram(groups, size, some.device)
    gram.add(some)
    norms = [torch.linalg.vector_norm(part, dim=(1, 2), dtype=torch.float64) for part in rows]
    least = tolerance**2 * torch.stack(norms).square().sum(0).to(gram.device)
    margin = gram.matrix() - torch.diag_embed(least[:, None].expand(-1, size))
    return not bool(torch.linalg.cholesky_ex(margin)[1].any())
