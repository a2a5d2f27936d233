"""The metrics together, and how they are shown."""

from dataclasses import dataclass
from math import isnan

from .accuracy_matrix import AccuracyMatrix
from .metrics import (
    Baseline,
    ForwardTransfer,
    average_accuracy,
    average_forgetting,
    backward_transfer,
    forward_transfer,
    learning_accuracy,
)


@dataclass(frozen=True)
class Summary:
    """Every metric of one row, as fractions; defined in `remnant.evaluation.metrics`."""

    tasks: int
    acc: float
    bwt: float
    forgetting: float
    learning_accuracy: float
    fwt: ForwardTransfer | None

    def __str__(self) -> str:
        parts = [
            f"ACC {percent(self.acc)}",
            f"BWT {percent(self.bwt)}",
            f"forgetting {percent(self.forgetting)}",
            f"learning accuracy {percent(self.learning_accuracy)}",
        ]
        if self.fwt is not None:
            parts.append(f"FWT {percent(self.fwt.value)} (against {self.fwt.baseline})")
        return ", ".join(parts)


def summarize(matrix: AccuracyMatrix, after: int | None = None, *, baseline: Baseline | None = None) -> Summary:
    """All metrics after learning task `after` (the last by default); forward transfer only against a baseline."""
    return Summary(
        tasks=matrix.learned if after is None else after + 1,
        acc=average_accuracy(matrix, after),
        bwt=backward_transfer(matrix, after),
        forgetting=average_forgetting(matrix, after),
        learning_accuracy=learning_accuracy(matrix, after),
        fwt=None if baseline is None else forward_transfer(matrix, baseline, after),
    )


def percent(fraction: float) -> str:
    """For people to read: 0.7248 is '72.48 %', and NaN is 'undefined'."""
    return "undefined" if isnan(fraction) else f"{fraction:.2%}".replace("%", " %")
