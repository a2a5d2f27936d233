"""The metrics against matrices worked by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remnant.evaluation import (
    AccuracyMatrix,
    average_accuracy,
    average_forgetting,
    backward_transfer,
    forward_transfer,
    learning_accuracy,
)

NAN = float("nan")
UNTRAINED = [0.1, 0.125, 0.1875]

# Multiples of 1/16 are exact in binary, so that the tests can compare with ==.
FULL = AccuracyMatrix(
    3,
    [
        [0.75, 0.25, 0.125],
        [0.875, 0.5, 0.25],
        [0.625, 0.25, 1.0],
    ],
)
SEEN_ONLY = AccuracyMatrix(3, [[0.75], [0.875, 0.5], [0.625, 0.25, 1.0]])
ONE_TASK = AccuracyMatrix(1, [[0.5]])
BY_HAND = {
    average_accuracy: (0.625 + 0.25 + 1.0) / 3,
    backward_transfer: ((0.625 - 0.75) + (0.25 - 0.5)) / 2,
    average_forgetting: ((0.875 - 0.625) + (0.5 - 0.25)) / 2,
    learning_accuracy: (0.75 + 0.5 + 1.0) / 3,
}
AFTER_SECOND = {
    average_accuracy: (0.875 + 0.5) / 2,
    backward_transfer: 0.875 - 0.75,
    average_forgetting: 0.75 - 0.875,
    learning_accuracy: (0.75 + 0.5) / 2,
}
METRICS = list(BY_HAND)


@pytest.mark.parametrize("matrix", [FULL, SEEN_ONLY], ids=["all measured", "NaN before a task is seen"])
@pytest.mark.parametrize("metric", METRICS)
def test_by_hand(metric, matrix):
    assert metric(matrix) == BY_HAND[metric]


@pytest.mark.parametrize("metric", METRICS)
def test_at_an_earlier_row_only_the_tasks_learned_by_then_count(metric):
    assert metric(FULL, after=1) == metric(SEEN_ONLY, after=1) == AFTER_SECOND[metric]


@pytest.mark.parametrize("metric", METRICS)
def test_an_unfinished_matrix_is_taken_at_its_last_row(metric):
    assert metric(AccuracyMatrix(5, [[0.75], [0.875, 0.5]])) == AFTER_SECOND[metric]


def test_one_task_has_accuracy_but_no_transfer():
    assert average_accuracy(ONE_TASK) == learning_accuracy(ONE_TASK) == 0.5
    assert math.isnan(backward_transfer(ONE_TASK))
    assert math.isnan(average_forgetting(ONE_TASK))
    assert math.isnan(forward_transfer(ONE_TASK, [0.1]))
    assert math.isnan(backward_transfer(FULL, after=0))


def test_forward_transfer_by_hand():
    assert forward_transfer(FULL, UNTRAINED) == ((0.25 - 0.125) + (0.25 - 0.1875)) / 2
    assert forward_transfer(FULL, [1, 0.75, 0.5]) == ((0.25 - 0.75) + (0.25 - 0.5)) / 2
    assert forward_transfer(FULL, UNTRAINED, after=1) == 0.25 - 0.125


def test_forward_transfer_needs_the_accuracy_on_the_next_task():
    assert math.isnan(forward_transfer(SEEN_ONLY, UNTRAINED))


@pytest.mark.parametrize("baseline", [[0.1, 0.1], [10, 10, 10], [0.1, NAN, 0.1]])
def test_an_unfit_baseline_is_refused(baseline):
    with pytest.raises(ValueError, match=r"fraction in \[0, 1\] for each of 3 tasks"):
        forward_transfer(FULL, baseline)


def test_forgetting_counts_an_accuracy_from_before_the_task_was_learned():
    # The definition's maximum runs over all earlier rows: 0.75 on task 1, before it was learned, is the best.
    matrix = AccuracyMatrix(3, [[1.0, 0.75], [1.0, 0.5], [1.0, 0.5, 1.0]])
    assert average_forgetting(matrix) == (0 + 0.25) / 2


@pytest.mark.parametrize("metric", METRICS)
def test_a_missing_accuracy_makes_the_metric_nan(metric):
    """A mean over fewer tasks would hide the missing one."""
    matrix = AccuracyMatrix(3, [[NAN], [0.875, 0.5], [NAN, 0.25, 1.0]])
    assert math.isnan(metric(matrix))


def test_forgetting_does_not_overlook_a_gap_in_a_learned_tasks_history():
    assert math.isnan(average_forgetting(AccuracyMatrix(3, [[0.75], [NAN, 0.5], [0.5, 0.25, 1.0]])))


@pytest.mark.parametrize("metric", METRICS)
def test_missing_rows_are_refused(metric):
    with pytest.raises(ValueError, match="No task is learned yet"):
        metric(AccuracyMatrix(2))
    for after in (2, -1):
        with pytest.raises(IndexError, match=rf"No row after task {after}: 2 of 3 tasks"):
            metric(AccuracyMatrix(3, [[0.5], [0.5, 0.5]]), after)


@given(st.integers(2, 6), st.randoms(use_true_random=False))
def test_what_was_learned_and_what_was_lost_add_up(tasks, random):
    matrix = AccuracyMatrix(tasks, [[random.random() for _ in range(tasks)] for _ in range(tasks)])
    learned, transfer = learning_accuracy(matrix), backward_transfer(matrix)
    np.testing.assert_allclose(average_accuracy(matrix), learned + (tasks - 1) / tasks * transfer, atol=1e-12)
    assert average_forgetting(matrix) >= -transfer - 1e-12
