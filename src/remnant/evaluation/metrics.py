"""The accuracy matrix R of a stream, its metrics, and the mean and deviation of a metric over several runs.

R[t, i] is the accuracy on task i after learning task t, as a fraction in [0, 1]. Each metric describes the state after
learning task `after`, by default the last learned task. In the formulas T is the number of tasks learned by then and
tasks count from 1, as in the paper. A metric is NaN where it is not defined (a comparison of tasks after only one) or
needs an accuracy that was not measured. It is never a mean over fewer tasks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isnan
from statistics import fmean, stdev
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

NO_VALUE = "–"


class AccuracyMatrix:
    """The accuracy matrix of a stream; each learned task adds a row.

    Tasks count from 0. Unknown entries are NaN: rows of tasks that are not learned yet, and tasks that a row leaves out.

    Args:
        tasks: the number of tasks in the stream.
        rows: the rows of the tasks that are already learned; `learned` counts them.

    Example:
        >>> matrix = AccuracyMatrix(2, [[0.9], [0.8, 0.7]])
        >>> matrix[1, 0]
        0.8
    """

    def __init__(self, tasks: int, rows: Iterable[ArrayLike] = ()) -> None:
        if tasks < 1:
            raise ValueError(f"An accuracy matrix needs at least one task, not {tasks}.")
        self.tasks, self.learned = tasks, 0
        self._values = np.full((tasks, tasks), np.nan)
        for row in rows:
            self.append(row)

    @property
    def values(self) -> NDArray[np.float64]:
        """A copy of the whole matrix, tasks × tasks."""
        return self._values.copy()

    def __getitem__(self, entry: tuple[int, int]) -> float:
        return float(self._values[entry])

    def append(self, accuracies: ArrayLike) -> None:
        """Adds the row of the task just learned: the accuracies on tasks 0, 1, … Missing tasks at the end are NaN."""
        row, task = np.asarray(accuracies, dtype=np.float64), self.learned
        if task == self.tasks:
            raise ValueError(f"All {self.tasks} tasks already have their row.")
        if row.ndim != 1 or not task < row.size <= self.tasks:
            needs = f"needs {task + 1} to {self.tasks} accuracies"
            raise ValueError(f"The row after task {task} {needs}, got an array of shape {row.shape}.")
        if ((row < 0) | (row > 1)).any():
            raise ValueError(f"Accuracies are fractions in [0, 1], not per cent; got {row.tolist()}.")
        self._values[task, : row.size] = row
        self.learned += 1

    def to_csv(self) -> str:
        """One line per learned task, with every digit, so that `from_csv` restores the exact matrix. NaN is an empty cell."""
        rows = [["after", *map(str, range(self.tasks))]]
        for task, row in enumerate(self._values[: self.learned].tolist()):
            rows.append([str(task), *("" if np.isnan(accuracy) else repr(accuracy) for accuracy in row)])
        return "".join(",".join(row) + "\n" for row in rows)

    @classmethod
    def from_csv(cls, text: str) -> Self:
        """Reads the text that `to_csv` wrote."""
        header, *lines = [line.split(",") for line in text.splitlines()] or [[""]]
        matrix = cls(max(1, len(header) - 1))
        if header != ["after", *map(str, range(matrix.tasks))]:
            raise ValueError(f"Not an accuracy matrix: the first line must be 'after,0,1,…', not {','.join(header)!r}.")
        for task, (number, *cells) in enumerate(lines):
            if number != str(task) or len(cells) != matrix.tasks:
                raise ValueError(
                    f"Not an accuracy matrix: line {task + 2} needs '{task}' and {matrix.tasks} accuracies."
                )
            matrix.append([float(cell) if cell else np.nan for cell in cells])
        return matrix

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AccuracyMatrix) and (
            self.learned == other.learned and np.array_equal(self._values, other._values, equal_nan=True)
        )

    def __repr__(self) -> str:
        return f"<AccuracyMatrix: {self.learned} of {self.tasks} tasks learned>"


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
            others take the accuracy of a network trained on the task alone. Do not compare values with different baselines.
        after: the last learned task to consider.
    """
    R = _learned_square(matrix, after)
    b = np.asarray(baseline, dtype=np.float64)
    if b.shape != (matrix.tasks,) or not ((b >= 0) & (b <= 1)).all():
        raise ValueError(f"The baseline needs a fraction in [0, 1] for each of {matrix.tasks} tasks, not {b.tolist()}.")
    return _mean(R.diagonal(1) - b[1 : len(R)])


def _learned_square(matrix: AccuracyMatrix, after: int | None) -> NDArray[np.float64]:
    """The T×T corner of R with the tasks learned by the end of task `after`."""
    if matrix.learned == 0:
        raise ValueError("No task is learned yet: the accuracy matrix is empty.")
    after = matrix.learned - 1 if after is None else after
    if not 0 <= after < matrix.learned:
        raise IndexError(f"No row after task {after}: {matrix.learned} of {matrix.tasks} tasks are learned.")
    return matrix._values[: after + 1, : after + 1]


def _mean(differences: NDArray[np.float64]) -> float:
    """The mean, or NaN (without numpy's warning) for an empty array."""
    return float(differences.mean()) if differences.size else float("nan")


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
