"""R[t, i]: the accuracy on task i after learning task t."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray


class AccuracyMatrix:
    """The accuracy matrix of a stream; each learned task adds a row.

    R[t, i] is the accuracy on task i after learning task t, as a fraction in [0, 1]. Tasks count from 0. Unknown
    entries are NaN: the rows of tasks that are not learned yet, and tasks that a row leaves out.

    Args:
        tasks: the number of tasks in the stream.
        rows: the rows of the tasks that are already learned.

    Example:
        >>> matrix = AccuracyMatrix(2, [[0.9], [0.8, 0.7]])
        >>> matrix[1, 0]
        0.8
    """

    def __init__(self, tasks: int, rows: Iterable[ArrayLike] = ()) -> None:
        if tasks < 1:
            raise ValueError(f"An accuracy matrix needs at least one task, not {tasks}.")
        self._values = np.full((tasks, tasks), np.nan)
        self._learned = 0
        for row in rows:
            self.append(row)

    @property
    def tasks(self) -> int:
        """The number of tasks in the stream."""
        return len(self._values)

    @property
    def learned(self) -> int:
        """The number of tasks learned so far, which is the number of rows."""
        return self._learned

    @property
    def values(self) -> NDArray[np.float64]:
        """A copy of the whole matrix, tasks × tasks."""
        return self._values.copy()

    def __getitem__(self, entry: tuple[int, int]) -> float:
        return float(self._values[entry])

    def append(self, accuracies: ArrayLike) -> None:
        """Adds the row of the task just learned: the accuracies on tasks 0, 1, … Missing tasks at the end are NaN."""
        row = np.asarray(accuracies, dtype=np.float64)
        if self._learned == self.tasks:
            raise ValueError(f"All {self.tasks} tasks already have their row.")
        if row.ndim != 1 or not self._learned < row.size <= self.tasks:
            raise ValueError(
                f"The row after task {self._learned} needs {self._learned + 1} to {self.tasks} accuracies, "
                f"got an array of shape {row.shape}."
            )
        if ((row < 0) | (row > 1)).any():
            raise ValueError(f"Accuracies are fractions in [0, 1], not per cent; got {row.tolist()}.")
        self._values[self._learned, : row.size] = row
        self._learned += 1

    def to_csv(self) -> str:
        """One line per learned task, with every digit, so that `from_csv` restores the exact matrix. NaN is an empty cell."""
        rows = [["after", *map(str, range(self.tasks))]]
        for task, row in enumerate(self._values[: self._learned].tolist()):
            rows.append([str(task), *("" if np.isnan(accuracy) else repr(accuracy) for accuracy in row)])
        return "".join(",".join(row) + "\n" for row in rows)

    @classmethod
    def from_csv(cls, text: str) -> "AccuracyMatrix":
        """Reads the text that `to_csv` wrote."""
        header, *lines = [line.split(",") for line in text.splitlines()] or [[""]]
        tasks = len(header) - 1
        if header != ["after", *map(str, range(tasks))]:
            raise ValueError(f"Not an accuracy matrix: the first line must be 'after,0,1,…', not {','.join(header)!r}.")
        matrix = cls(tasks)
        for task, (number, *cells) in enumerate(lines):
            if number != str(task):
                raise ValueError("Not an accuracy matrix: each line must begin with its task, 0, 1, … in order.")
            if len(cells) != tasks:
                raise ValueError(f"After task {task}: {len(cells)} accuracies for {tasks} tasks.")
            try:
                row = [float(cell) if cell else np.nan for cell in cells]
            except ValueError as error:
                raise ValueError(f"After task {task}: {error}.") from None
            matrix.append(row)
        return matrix

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AccuracyMatrix) and (
            self._learned == other._learned and np.array_equal(self._values, other._values, equal_nan=True)
        )

    def __repr__(self) -> str:
        return f"<AccuracyMatrix: {self._learned} of {self.tasks} tasks learned>"
