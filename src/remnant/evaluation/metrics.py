"""Metrics of an accuracy matrix R, each defined once.

Each metric describes the state after learning task `after`, by default the last learned task. In the formulas T is the
number of tasks learned by then and tasks count from 1, as in the paper. A metric is NaN where it is not defined (a
comparison of tasks after only one) or needs an accuracy that was not measured. It is never a mean over fewer tasks.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .accuracy_matrix import AccuracyMatrix


def average_accuracy(matrix: AccuracyMatrix, after: int | None = None) -> float:
    """ACC = 1/T · Σ_{i=1..T} R[T,i] (Eq. 10).

    Example:
        >>> average_accuracy(AccuracyMatrix(2, [[1.0], [0.5, 1.0]]))
        0.75
    """
    return float(_learned_square(matrix, after)[-1].mean())


def backward_transfer(matrix: AccuracyMatrix, after: int | None = None) -> float:
    """BWT = 1/(T−1) · Σ_{i=1..T−1} (R[T,i] − R[i,i]) (Eq. 10); negative values mean forgetting."""
    R = _learned_square(matrix, after)
    return _mean((R[-1] - R.diagonal())[:-1])


def learning_accuracy(matrix: AccuracyMatrix, after: int | None = None) -> float:
    """LA = 1/T · Σ_{i=1..T} R[i,i], each task's accuracy just after it was learned. ACC = LA + (T−1)/T · BWT."""
    return float(_learned_square(matrix, after).diagonal().mean())


def average_forgetting(matrix: AccuracyMatrix, after: int | None = None) -> float:
    """F = 1/(T−1) · Σ_{i=1..T−1} (max_{t=1..T−1} R[t,i] − R[T,i]) (Chaudhry et al., 2018); positive means forgetting.

    The maximum includes accuracies from before task i was learned, where they were measured.
    """
    R = _learned_square(matrix, after)
    unseen = np.triu(np.isnan(R), k=1)  # only an accuracy from before its task was learned may be missing
    best = np.where(unseen, -np.inf, R)[:-1, :-1].max(axis=0, initial=-np.inf)
    return _mean(best - R[-1, :-1])


def forward_transfer(matrix: AccuracyMatrix, baseline: Sequence[float], after: int | None = None) -> float:
    """FWT = 1/(T−1) · Σ_{i=2..T} (R[i−1,i] − b[i]) (Lopez-Paz & Ranzato, 2017).

    Args:
        matrix: its rows must include the accuracy on the next task.
        baseline: b, each task's accuracy without the tasks before it. Lopez-Paz & Ranzato take the untrained network's;
            others take that of a network trained on the task alone. Values with different baselines do not compare.
        after: the last learned task to consider.
    """
    R = _learned_square(matrix, after)
    b = np.asarray(baseline, dtype=np.float64)
    if b.shape != (matrix.tasks,) or not ((b >= 0) & (b <= 1)).all():
        raise ValueError(f"The baseline needs a fraction in [0, 1] for each of {matrix.tasks} tasks, not {b.tolist()}.")
    return _mean(R.diagonal(1) - b[1 : len(R)])


def summarize(
    matrix: AccuracyMatrix, after: int | None = None, *, baseline: Sequence[float] | None = None
) -> dict[str, float]:
    """All metrics by name; forward transfer ("fwt") only with a baseline."""
    metrics = {
        "acc": average_accuracy(matrix, after),
        "bwt": backward_transfer(matrix, after),
        "forgetting": average_forgetting(matrix, after),
        "learning_accuracy": learning_accuracy(matrix, after),
    }
    return metrics if baseline is None else {**metrics, "fwt": forward_transfer(matrix, baseline, after)}


def _learned_square(matrix: AccuracyMatrix, after: int | None) -> NDArray[np.float64]:
    """The T×T corner of R with the tasks learned by the end of task `after`."""
    if matrix.learned == 0:
        raise ValueError("No task is learned yet: the accuracy matrix is empty.")
    if after is None:
        after = matrix.learned - 1
    if not 0 <= after < matrix.learned:
        raise IndexError(f"No row after task {after}: {matrix.learned} of {matrix.tasks} tasks are learned.")
    return matrix.values[: after + 1, : after + 1]


def _mean(differences: NDArray[np.float64]) -> float:
    """The mean, or NaN (without numpy's warning) for an empty array."""
    return float(differences.mean()) if differences.size else float("nan")
