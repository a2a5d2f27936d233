"""Block Lanczos: the leading eigenpairs of a large Gram matrix, only as many as the rank rule can need, to full precision."""

import torch
from torch import Tensor

WORTHWHILE = 1024  # a full decomposition of a smaller matrix is as fast
BLOCK = 48
LARGEST = 0.34  # share of all directions beyond which a full decomposition is cheaper
PRECISION = 1e-12  # residual ‖Gv − λv‖ relative to the largest eigenvalue, as a full decomposition leaves


def leading(matrix: Tensor, enough: float) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues, until their sum reaches `enough`, with their eigenvectors; all where that is cheaper."""
    found = None
    if matrix.shape[0] >= WORTHWHILE and enough < 0.999 * float(matrix.diagonal().sum()):
        found = _lanczos(matrix, enough)
    if found is None:
        values, vectors = torch.linalg.eigh(matrix)
        found = values.flip(0), vectors.flip(1)
    return found[0].clamp(min=0), found[1]


def _lanczos(matrix: Tensor, enough: float) -> tuple[Tensor, Tensor] | None:
    """Grows an orthonormal basis V of the Krylov space of a random block until its leading Ritz pairs are exact."""
    n = matrix.shape[0]
    most = int(LARGEST * n)
    start = torch.randn(n, BLOCK, generator=torch.Generator().manual_seed(n), dtype=matrix.dtype)
    block = torch.linalg.qr(start.to(matrix.device))[0]
    columns = matrix.new_empty(n, most + BLOCK)
    small = matrix.new_zeros(most + BLOCK, most + BLOCK)  # VᵀGV
    size = checked = 0
    while size < most:
        columns[:, size : size + BLOCK] = block
        before, size = size, size + BLOCK
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
        values, vectors = torch.linalg.eigh(small[:size, :size])
        values, vectors = values.flip(0), vectors.flip(1)
        count = int((values.cumsum(0) < enough).sum()) + 2  # one more than needed, so that the cut is certain
        if 3 * count > most:
            return None  # Lanczos needs about three directions for each one that it finds
        if count > before:
            continue
        residual = (coupling @ vectors[before:, :count]).norm(dim=0).max() / values[0]
        if float(residual) < PRECISION:
            return values[:count], basis @ vectors[:, :count]
    return None
