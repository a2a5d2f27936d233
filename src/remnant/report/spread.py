"""A mean, how much it varies over seeds, and how far two of them are apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import atan, exp, isnan, lgamma, pi, sqrt, tan
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (of a sample) of `n` values; no mean where there is nothing, no sd of one."""

    mean: float | None = None
    sd: float | None = None
    n: int = 0

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Spread:
        """Of all the values or of none: a mean over fewer than there are runs would mislead."""
        known = [value for value in values if value is not None and not isnan(value)]
        if not known or len(known) < len(values):
            return cls()
        return cls(fmean(known), stdev(known) if len(known) > 1 else None, len(known))


class Interval(NamedTuple):
    """The difference of two means, and where it lies with 95 % confidence."""

    difference: float
    low: float
    high: float

    @property
    def settled(self) -> bool:
        """Whether it leaves out zero."""
        return self.low > 0 or self.high < 0


def welch(a: Spread, b: Spread, rounding: float = 0.0) -> Interval | None:
    """a − b by Welch: d ± t_ν·√(s_a²/n_a + s_b²/n_b); wider by `rounding` where b was printed with few digits.

    ν = (v_a + v_b)² / (v_a²/(n_a − 1) + v_b²/(n_b − 1)) with v = s²/n. One value has no spread to speak of: None.
    """
    if a.mean is None or b.mean is None or a.sd is None or b.sd is None:
        return None
    v_a, v_b = a.sd**2 / a.n, b.sd**2 / b.n
    half = rounding
    if v_a + v_b > 0:
        freedom = (v_a + v_b) ** 2 / (v_a**2 / (a.n - 1) + v_b**2 / (b.n - 1))
        half += student_quantile((1 + CONFIDENCE) / 2, freedom) * sqrt(v_a + v_b)
    difference = a.mean - b.mean
    return Interval(difference, difference - half, difference + half)


def student_quantile(probability: float, freedom: float) -> float:
    """The t that Student's variable with `freedom` ≥ 1 degrees of freedom stays below with this probability, ≥ 1/2.

    With t = √ν·tan θ the density is cos^(ν−1) θ up to a constant, smooth on [0, π/2): integrated there, and bisected.
    """
    if not 0.5 <= probability < 1 or freedom < 1:
        raise ValueError(f"No such quantile: probability {probability}, {freedom} degrees of freedom.")
    scale = exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / sqrt(pi)
    low, high = 0.0, atan(200.0)  # 200·√ν is further out than 0.975 ever asks for
    for _ in range(60):
        middle = (low + high) / 2
        angles = middle * (_NODES + 1) / 2
        below = 0.5 + scale * middle / 2 * float(_WEIGHTS @ np.cos(angles) ** (freedom - 1))
        low, high = (middle, high) if below < probability else (low, middle)
    return sqrt(freedom) * tan((low + high) / 2)
