"""A histogram of values that stream by, without knowing their range beforehand."""

from math import isfinite, ldexp

import torch
from torch import Tensor

HALF = 128  # bins on either side of zero; even, so that two neighbours make one bin of twice the width
SMALLEST = -20  # the finest range is ±2^SMALLEST; smaller values are rounding of float32


class Histogram:
    """Counts in 2·HALF equal bins over [−R, R), where R is the smallest power of two above every |value|.

    All edges are multiples of a power of two. So the bin of a value is exact, and the counts do not depend on the batches.
    """

    def __init__(self) -> None:
        self._exponent = SMALLEST
        self._counts = torch.zeros(2 * HALF, dtype=torch.int64)

    def add(self, values: Tensor) -> None:
        if not values.numel():
            return
        largest = float(values.abs().max())
        if not isfinite(largest):
            raise ValueError("a value is NaN or inf")
        while largest >= ldexp(1.0, self._exponent):
            self._double()
        # In float64, the division turns no value into zero.
        bins = (values.detach().flatten().double() / self._width).floor().long() + HALF
        self._counts += torch.bincount(bins, minlength=2 * HALF).cpu()

    @property
    def edges(self) -> list[float]:
        return [number * self._width for number in range(-HALF, HALF + 1)]

    @property
    def counts(self) -> list[int]:
        return [int(count) for count in self._counts]

    @property
    def _width(self) -> float:
        return ldexp(1.0, self._exponent) / HALF

    def _double(self) -> None:
        merged = torch.zeros_like(self._counts)
        merged[HALF // 2 : HALF // 2 + HALF] = self._counts.view(-1, 2).sum(dim=1)
        self._counts = merged
        self._exponent += 1
