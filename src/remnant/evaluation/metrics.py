"""One number from an accuracy matrix. One definition each.

All are taken after learning task `after`, by default the last one learned; T below is the number of tasks learned by
then (`after + 1`), and tasks count from 1 in the formulas as in the paper. All are fractions, or differences of
fractions. A metric that is not defined (one task, for those that compare tasks), or that needs an accuracy nobody
measured, is NaN: never a mean over fewer tasks than it says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .accuracy_matrix import AccuracyMatrix


def average_accuracy(matrix: AccuracyMatrix, after: int | None = None) -> float:
    """ACC = 1/T · Σ_{i=1..T} R[T,i], over the tasks learned so far (Eq. 10)."""
    R = _learned_square(matrix, after)
    return float(R[-1].mean())


def backward_transfer(matrix: AccuracyMatrix, after: int | None = None) -> float:
    """BWT = 1/(T−1) · Σ_{i=1..T−1} (R[T,i] − R[i,i]) (Eq. 10). Negative: forgetting.

    NaN after one task: there is nothing to have forgotten.
    """
    R = _learned_square(matrix, after)
    return _mean((R[-1] - R.diagonal())[:-1])


def learning_accuracy(matrix: AccuracyMatrix, after: int | None = None) -> float:
    """LA = 1/T · Σ_{i=1..T} R[i,i]: each task's accuracy just after it was learned. ACC = LA + (T−1)/T · BWT."""
    R = _learned_square(matrix, after)
    return float(R.diagonal().mean())


def average_forgetting(matrix: AccuracyMatrix, after: int | None = None) -> float:
    """F = 1/(T−1) · Σ_{i=1..T−1} (max_{t=1..T−1} R[t,i] − R[T,i]) (Chaudhry et al., 2018). Positive: forgetting.

    A row t < i, from before task i was learned, counts in the maximum where it was measured. NaN after one task.
    """
    R = _learned_square(matrix, after)
    unseen = np.triu(np.isnan(R), k=1)  # only an accuracy from before its task was learned may be missing
    best = np.where(unseen, -np.inf, R)[:-1, :-1].max(axis=0, initial=-np.inf)
    return _mean(best - R[-1, :-1])


BaselineKind = Literal["random-init", "single-task"]


@dataclass(frozen=True)
class Baseline:
    """What forward transfer is measured against: each task's accuracy without the tasks before it.

    `random-init`: of the untrained network (Lopez-Paz & Ranzato's). `single-task`: of a network trained on it alone.
    """

    kind: BaselineKind
    accuracies: Sequence[float]

    def __post_init__(self) -> None:
        if self.kind not in get_args(BaselineKind):
            raise ValueError(f"A baseline is one of {', '.join(get_args(BaselineKind))}, not {self.kind!r}.")
        if any(not 0 <= accuracy <= 1 for accuracy in self.accuracies):
            raise ValueError(f"A baseline's accuracies are fractions in [0, 1], not {list(self.accuracies)}.")


@dataclass(frozen=True)
class ForwardTransfer:
    """FWT, and which baseline it is against: the two baselines' numbers do not compare."""

    value: float
    baseline: BaselineKind


def forward_transfer(matrix: AccuracyMatrix, baseline: Baseline, after: int | None = None) -> ForwardTransfer:
    """FWT = 1/(T−1) · Σ_{i=2..T} (R[i−1,i] − b[i]), with b the baseline (Lopez-Paz & Ranzato, 2017).

    Needs rows measured on the task to come. NaN after one task.
    """
    R = _learned_square(matrix, after)
    b = np.asarray(baseline.accuracies, dtype=np.float64)
    if b.shape != (matrix.tasks,):
        raise ValueError(f"The baseline needs one accuracy for each of {matrix.tasks} tasks, not shape {b.shape}.")
    return ForwardTransfer(_mean(R.diagonal(1) - b[1 : len(R)]), baseline.kind)


def _learned_square(matrix: AccuracyMatrix, after: int | None) -> NDArray[np.float64]:
    """The T×T corner of R that tells of the tasks learned by the end of task `after`."""
    if matrix.learned == 0:
        raise ValueError("No task is learned yet: the accuracy matrix is empty.")
    if after is None:
        after = matrix.learned - 1
    if not 0 <= after < matrix.learned:
        raise IndexError(f"No row after task {after}: {matrix.learned} of {matrix.tasks} tasks are learned.")
    return matrix.values[: after + 1, : after + 1]


def _mean(differences: NDArray[np.float64]) -> float:
    """The mean, and NaN (without numpy's warning) for the mean of nothing."""
    return float(differences.mean()) if differences.size else float("nan")
