"""min ½vᵀPv + qᵀv over v ≥ 0, for few variables, without leaving the device."""

from __future__ import annotations

import torch
from torch import Tensor

EVERY_SET = 10  # variables up to which all sets of positive ones are tried
SETS, ROUNDS = 256, 12  # tried at once and one after the other where they are more
RIDGE = 1e-12  # relative, far under what is asked of the answer: equal constraints then have one answer


class NonNegativeQuadratic:
    """Solves many such problems of one size: P positive semi-definite and q in its range, both float64.

    If it were known which variables are positive in the answer, the rest would be a linear system: P·v = −q on those. So
    sets of variables are tried side by side, as one batch of systems; what comes out negative is cut to 0, which leaves
    nothing but points with v ≥ 0, and the lowest of them is taken. Up to `EVERY_SET` variables every set is tried, and the
    answer is exact. With more, each of `SETS` sets is bettered for `ROUNDS` rounds: a variable enters where the slope
    Pv + q is negative and leaves where its value is (block principal pivoting), all of those at once in the first set, a
    fixed random half in the others, which keeps them from going in circles together.

    There is no branch on a number, and the elimination is written out: a library's solver would report to the host.
    """

    def __init__(self, variables: int, device: torch.device) -> None:
        if variables <= EVERY_SET:
            sets = (torch.arange(2**variables)[:, None] >> torch.arange(variables)) & 1 == 1
            swaps = torch.zeros(0, dtype=torch.bool)
        else:
            sets = torch.zeros(SETS, variables, dtype=torch.bool)
            own = torch.Generator().manual_seed(0)  # the same problem has the same answer
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
        # A singular system may give no number.
        best = heights.nan_to_num(torch.inf, neginf=torch.inf).argmin(keepdim=True)
        return tried.index_select(0, best)[0]

    def _points(self, P: Tensor, q: Tensor, sets: Tensor) -> Tensor:
        """For each set the v with P·v = −q on the set and 0 elsewhere: Gauss–Jordan; such a P needs no change of rows."""
        on = sets.to(P.dtype)
        both = on[:, :, None] * on[:, None, :]
        outside = self.identity * (1 - on)[:, :, None]
        tableau = torch.cat([torch.addcmul(outside, both, P), (on * -q)[:, :, None]], dim=2)
        for pivot in range(len(q)):
            row = tableau[:, pivot : pivot + 1, 1:] / tableau[:, pivot : pivot + 1, :1]
            column = tableau[:, :, :1] - self.identity[:, pivot : pivot + 1]
            tableau = torch.addcmul(tableau[:, :, 1:], column, row, value=-1)
        return tableau[:, :, 0]
