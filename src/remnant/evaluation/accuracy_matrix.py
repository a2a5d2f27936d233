"""R[t, i]: the accuracy on task i after learning task t."""

import csv
import io
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


class AccuracyMatrix:
    """The accuracy matrix of a stream, filled in row by row as its tasks are learned.

    R[t, i] is the accuracy on task i after learning task t, a fraction in [0, 1]; tasks count from 0. What is not known
    is NaN: rows of tasks not yet learned, and tasks not yet seen where a row left them out.
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
        """How many tasks the stream has."""
        return len(self._values)

    @property
    def learned(self) -> int:
        """How many tasks are learned, which is how many rows are filled in."""
        return self._learned

    @property
    def values(self) -> NDArray[np.float64]:
        """A copy of the whole matrix, tasks × tasks."""
        return self._values.copy()

    def __getitem__(self, entry: tuple[int, int]) -> float:
        return float(self._values[entry])

    def append(self, accuracies: ArrayLike) -> None:
        """Adds the row of the task just learned: its accuracies on task 0, 1, … Tasks left off the end are NaN."""
        row = np.asarray(accuracies, dtype=np.float64)
        if self._learned == self.tasks:
            raise ValueError(f"All {self.tasks} tasks already have their row.")
        if row.ndim != 1 or not self._learned < row.size <= self.tasks:
            raise ValueError(
                f"The row after task {self._learned} needs {self._learned + 1} to {self.tasks} accuracies, "
                f"got an array of shape {row.shape}."
            )
        known = row[~np.isnan(row)]
        if ((known < 0) | (known > 1)).any():
            raise ValueError(f"Accuracies are fractions in [0, 1], not per cent; got {row.tolist()}.")
        self._values[self._learned, : row.size] = row
        self._learned += 1

    def to_csv(self) -> str:
        """One line per learned task, `from_csv`'s exact inverse: every digit is kept, and NaN is an empty cell."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["after", *range(self.tasks)])
        for task, row in enumerate(self._values[: self._learned].tolist()):
            writer.writerow([task, *("" if np.isnan(accuracy) else repr(accuracy) for accuracy in row)])
        return text.getvalue()

    @classmethod
    def from_csv(cls, text: str) -> "AccuracyMatrix":
        """Reads what `to_csv` wrote."""
        header, *lines = csv.reader(io.StringIO(text, newline="")) if text.strip() else [[""]]
        if header[:1] != ["after"] or header[1:] != _numbers(len(header) - 1):
            raise ValueError(
                f"Not an accuracy matrix: its first line should be 'after,0,1,…', not {','.join(header)!r}."
            )
        if [line[:1] for line in lines] != [[number] for number in _numbers(len(lines))]:
            raise ValueError("Not an accuracy matrix: each line should begin with its task, 0, 1, … in order.")
        for line in lines:
            if len(line) != len(header):
                raise ValueError(f"After task {line[0]}: {len(line) - 1} accuracies for {len(header) - 1} tasks.")
        return cls(len(header) - 1, (_accuracies(line[0], line[1:]) for line in lines))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AccuracyMatrix):
            return NotImplemented
        return self._learned == other._learned and np.array_equal(self._values, other._values, equal_nan=True)

    def __repr__(self) -> str:
        return f"<AccuracyMatrix: {self._learned} of {self.tasks} tasks learned>"


def _numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def _accuracies(task: str, cells: Sequence[str]) -> list[float]:
    try:
        return [float(cell) if cell else np.nan for cell in cells]
    except ValueError as error:
        raise ValueError(f"After task {task}: {error}.") from None
