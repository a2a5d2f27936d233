"""A Gram matrix too large to keep, known by its products with a few random vectors (Nyström's approximation)."""

import torch
from torch import Tensor

from .gram import CHUNK, GroupGram


class Sketch:
    r"""Sums :math:`Y = R^\top (R \Omega)` over batches for a random :math:`\Omega` of n × `width` numbers.

    :math:`\hat G = Y (\Omega^\top Y)^{-1} Y^\top` then approximates :math:`G = R^\top R` from below,
    :math:`0 \preceq \hat G \preceq G`. For every k < w − 1 (Tropp et al., 2017, "Fixed-rank approximation of a
    positive-semidefinite matrix from streaming data"),

    .. math:: E\,\mathrm{tr}(G - \hat G) \le \left(1 + \frac{k}{w - k - 1}\right) \sum_{j > k} \lambda_j(G).

    So directions that explain a share ε of the energy by Ĝ explain at least ε of the real energy. The sums of several
    processes may be added. `missing` is the largest share of energy that Ĝ lacked when `of_group` was called.
    """

    def __init__(self, groups: int, random: Tensor) -> None:
        self.groups, self._random, self.device = groups, random, random.device
        self.size, self.width = random.shape
        self.count, self.missing = 0, 0.0
        # The last column is the diagonal of RᵀR, whose sum is ‖R‖².
        self._sum = random.new_zeros(groups, self.size, self.width + 1)

    def add(self, rows: Tensor) -> None:
        """Takes `rows` of shape (groups, N, size)."""
        self.count += rows.shape[1]
        for part in rows.split(max(1, CHUNK // max(1, self.groups * self.size)), dim=1):
            new = part.to(device=self.device, dtype=torch.float64)
            self._sum[:, :, :-1].baddbmm_(new.mT, new @ self._random)
            self._sum[:, :, -1] += new.square().sum(dim=1)

    def matrix(self) -> Tensor:
        """All sums. Those of several processes may be added."""
        return self._sum

    def replace(self, matrix: Tensor, count: int) -> None:
        """Replaces this process's sums by those of all processes."""
        self._sum, self.count = matrix, count

    def is_finite(self) -> bool:
        return bool(self._sum[:, :, -1].isfinite().all())

    def of_group(self, group: int) -> GroupGram:
        """Rows F with FᵀF = Ĝ, and the energy that they lack."""
        sums, total = self._sum[group, :, :-1], self._sum[group, :, -1].sum()
        core = self._random.mT @ sums
        values, vectors = torch.linalg.eigh((core + core.mT) / 2)
        # Random vectors whose eigenvalue is only rounding are left out; Ĝ is then the approximation by the others.
        met = values > self.size**0.5 * torch.finfo(torch.float64).eps * sums.norm()
        rows = (vectors[:, met] / values[met].sqrt()).mT @ sums.mT
        rest = (total - rows.square().sum()).clamp(min=0)
        self.missing = max(self.missing, float(rest / total) if bool(total > 0) else 0.0)
        return GroupGram(rows, is_rows=True, rest=rest)

    def energy_of(self, stack: Tensor) -> Tensor:
        """‖W·Fᵀ‖² of a stack of matrices W, summed over the groups: at most ‖W·Rᵀ‖²."""
        parts = [(x.to(self._sum) @ self.of_group(group).tensor.mT).square().sum() for group, x in enumerate(stack)]
        return torch.stack(parts).sum()


def random_vectors(size: int, width: int, device: torch.device, *, seed: int = 0) -> Tensor:
    """Ω with orthonormal columns, the same in all processes."""
    gaussian = torch.randn(
        size, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, device="cpu"
    )
    place = torch.device("cpu") if device.type == "mps" else device  # which has no float64
    q: Tensor = torch.linalg.qr(gaussian.to(place))[0]
    return q
