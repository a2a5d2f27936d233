"""min ½vᵀPv + qᵀv over v ≥ 0, for few variables, without leaving the device."""

from __future__ import annotations

import torch
from torch import Tensor

EVERY_SET = 10  # up to so many variables, all sets of positive variables are tried
SETS, ROUNDS = 256, 12  # with more variables: sets tried at once, and how often each is improved
RIDGE = 1e-12  # relative, far below the accuracy needed: equal constraints then have one solution


class NonNegativeQuadratic:
    """Solves many such problems of one size, with P positive semi-definite and q in its range, both float64.

    If the positive variables of the solution were known, the rest would be a linear system: P·v = −q on those. So many sets
    of variables are tried as one batch of systems, negative results are cut to 0, and the lowest point wins. Up to
    `EVERY_SET` variables all sets are tried, and the solution is exact. With more, each of `SETS` sets is improved `ROUNDS`
    times by block principal pivoting: a variable enters where the slope Pv + q is negative and leaves where its value is. The
    first set swaps all of those at once, the others a fixed random half, which keeps them from cycling together.

    Nothing branches on a number, and the elimination is written out because a library's solver would report to the host.
    """

    def __init__(self, variables: int, device: torch.device) -> None:
        if variables <= EVERY_SET:
            sets = (torch.arange(2**variables)[:, None] >> torch.arange(variables)) & 1 == 1
            swaps = torch.zeros(0, dtype=torch.bool)
        else:
            sets = torch.zeros(SETS, variables, dtype=torch.bool)
            own = torch.Generator().manual_seed(0)  # the same problem has the same solution
            swaps = torch.rand(ROUNDS - 1, SETS, variables, generator=own) < 0.5
            swaps[:, 0] = True
        self.sets, self.swaps = sets.to(device), swaps.to(device)
        self.identity = torch.eye(variables, dtype=torch.float64, device=device)
        self.ridge = 1 + RIDGE * self.identity

    def solve(self, P: Tensor, q: Tensor) -> Tensor:
        P = P * self.ridge
        sets = self.sets
        points = self._points(P, q, sets)
        candidates = [points]
        for swaps in self.swaps:
            wrong = torch.where(sets, points, torch.addmm(q, points, P)) < 0
            sets = sets ^ (wrong & swaps)
            points = self._points(P, q, sets)
            candidates.append(points)
        tried = torch.cat(candidates).clamp(min=0)
        heights = torch.linalg.vecdot(torch.addmm(q, tried, P, alpha=0.5), tried)
        # A singular system may give NaN.
        best = heights.nan_to_num(torch.inf, neginf=torch.inf).argmin(keepdim=True)
        return tried.index_select(0, best)[0]

    def _points(self, P: Tensor, q: Tensor, sets: Tensor) -> Tensor:
        """For each set, v with P·v = −q on the set and 0 elsewhere: Gauss–Jordan; such a P needs no row exchanges."""
        on = sets.to(P.dtype)
        both = on[:, :, None] * on[:, None, :]
        outside = self.identity * (1 - on)[:, :, None]
        tableau = torch.cat([torch.addcmul(outside, both, P), (on * -q)[:, :, None]], dim=2)
        for pivot in range(len(q)):
            row = tableau[:, pivot : pivot + 1, 1:] / tableau[:, pivot : pivot + 1, :1]
            column = tableau[:, :, :1] - self.identity[:, pivot : pivot + 1]
            tableau = torch.addcmul(tableau[:, :, 1:], column, row, value=-1)
        return tableau[:, :, 0]
