"""The mean of a figure over seeds, and how much it varies."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from statistics import fmean, stdev
from typing import Self

NO_VALUE = "–"


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of `n` values. `mean` is None without values, `sd` without two of them.

    >>> Spread.of([0.71, 0.73], scale=100).text(2)
    '72.00 ± 1.41'
    """

    mean: float | None = None
    sd: float | None = None
    n: int = 0

    @classmethod
    def of(cls, values: Sequence[float | None], scale: float = 1.0) -> Self:
        """The spread of all values, or an empty one if a value is missing: a mean over fewer runs would mislead."""
        defined = [scale * value for value in values if value is not None and not isnan(value)]
        if not defined or len(defined) < len(values):
            return cls()
        return cls(fmean(defined), stdev(defined) if len(defined) > 1 else None, len(defined))

    def text(self, places: int, sign: str = "-") -> str:
        """`72.00 ± 1.41`, `72.00` for one value, a dash for none. `sign="+"` marks positive means."""
        if self.mean is None:
            return NO_VALUE
        mean = f"{round(self.mean, places) + 0.0:{sign}.{places}f}"  # never a negative zero
        return mean if self.sd is None else f"{mean} ± {self.sd:.{places}f}"
