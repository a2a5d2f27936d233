"""Block Lanczos: the leading eigenpairs of a large symmetric matrix, without its full decomposition."""

import torch
from torch import Tensor

BLOCK = 48  # columns that are added at a time
PER_DIRECTION = 3  # Lanczos needs about three directions for each one that it finds
PRECISION = 1e-12  # residual ‖Gv − λv‖ relative to the largest eigenvalue, as a full decomposition leaves


def leading(matrix: Tensor, enough: float, most: int) -> tuple[Tensor, Tensor] | None:
    """Returns the largest eigenvalues of a Gram matrix G until their sum reaches `enough`, and their eigenvectors.

    It grows an orthonormal basis V of the Krylov space of a random block until the Ritz pairs in it are exact. It returns
    None if that takes more than `most` columns: a full decomposition is then cheaper.
    """
    n = matrix.shape[0]
    start = torch.randn(n, BLOCK, generator=torch.Generator().manual_seed(n), dtype=matrix.dtype, device="cpu")
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
        values, vectors = (x.flip(-1) for x in torch.linalg.eigh(small[:size, :size]))  # the largest first
        count = int((values.cumsum(0) < enough).sum()) + 2  # one more than needed, so that the cut is certain
        if PER_DIRECTION * count > most:
            return None
        residual = (coupling @ vectors[before:, :count]).norm(dim=0).max() / values[0]
        if count <= before and float(residual) < PRECISION:
            return values[:count], basis @ vectors[:, :count]
    return None
