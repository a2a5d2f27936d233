"""The accuracy matrix: rows in order, NaN for unknown entries, and text that keeps every digit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remnant.evaluation import AccuracyMatrix

NAN = float("nan")


@st.composite
def matrices(draw):
    """Any matrix of a run, finished or not, with or without accuracies on later tasks."""
    tasks = draw(st.integers(1, 5))
    learned = draw(st.integers(0, tasks))
    accuracy = st.floats(0, 1) | st.just(NAN)
    rows = [draw(st.lists(accuracy, min_size=t + 1, max_size=tasks)) for t in range(learned)]
    return AccuracyMatrix(tasks, rows)


def test_starts_unknown_and_fills_row_by_row():
    matrix = AccuracyMatrix(3)
    assert matrix.learned == 0
    assert np.isnan(matrix.values).all()
    matrix.append([0.9])
    matrix.append(np.array([0.8, 0.7, 0.1]))
    assert (matrix.tasks, matrix.learned) == (3, 2)
    expected = [[0.9, NAN, NAN], [0.8, 0.7, 0.1], [NAN, NAN, NAN]]
    np.testing.assert_array_equal(matrix.values, expected)
    assert matrix.values.dtype == np.float64
    assert matrix[1, 0] == 0.8


def test_values_are_a_copy():
    matrix = AccuracyMatrix(1, [[0.5]])
    matrix.values[0, 0] = 0.9
    assert matrix[0, 0] == 0.5


def test_per_cent_is_refused():
    with pytest.raises(ValueError, match=r"fractions in \[0, 1\], not per cent"):
        AccuracyMatrix(2).append([72.48, 60.1])


@pytest.mark.parametrize("row", [[0.5], [0.5] * 4, [[0.5, 0.5]], 0.5])
def test_a_row_must_cover_the_tasks_learned_and_no_more_than_there_are(row):
    matrix = AccuracyMatrix(3, [[0.5]])
    with pytest.raises(ValueError, match="after task 1 needs 2 to 3 accuracies"):
        matrix.append(row)
    assert matrix.learned == 1


def test_a_finished_matrix_takes_no_more_rows():
    with pytest.raises(ValueError, match="All 1 tasks already have their row"):
        AccuracyMatrix(1, [[0.5]]).append([0.5])


def test_a_matrix_without_tasks_is_refused():
    with pytest.raises(ValueError, match="at least one task"):
        AccuracyMatrix(0)


@given(matrices())
def test_csv_keeps_every_digit(matrix):
    again = AccuracyMatrix.from_csv(matrix.to_csv())
    assert again == matrix
    assert again.values.tobytes() == matrix.values.tobytes()


def test_csv_is_readable():
    assert AccuracyMatrix(2, [[0.1 + 0.2]]).to_csv() == "after,0,1\n0,0.30000000000000004,\n"


def test_csv_survives_windows_line_ends():
    matrix = AccuracyMatrix(2, [[0.25], [0.5, 1.0]])
    assert AccuracyMatrix.from_csv(matrix.to_csv().replace("\n", "\r\n")) == matrix


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "first line"),
        ("\nafter,0\n", "first line"),
        ("loss,0,1\n", "first line"),
        ("after,0,2\n", "first line"),
        ("after,0,1\n1,0.5,\n", "line 2 needs '0' and 2 accuracies"),
        ("after,0,1\n0,0.5\n", "line 2 needs '0' and 2 accuracies"),
        ("after,0,1\n0,good,\n", "'good'"),
        ("after,0,1\n0,50,\n", "not per cent"),
        ("after,0\n0,0.5\n1,0.5\n", "already have their row"),
    ],
)
def test_other_text_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        AccuracyMatrix.from_csv(text)


def test_equality_sees_values_and_progress():
    assert AccuracyMatrix(2, [[0.5]]) == AccuracyMatrix(2, [[0.5, NAN]])
    assert AccuracyMatrix(2, [[0.5]]) != AccuracyMatrix(2, [[0.6]])
    assert AccuracyMatrix(2, [[NAN]]) != AccuracyMatrix(2)
    assert AccuracyMatrix(1) != AccuracyMatrix(2)
    assert AccuracyMatrix(1) != "matrix"
