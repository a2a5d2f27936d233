"""Means, deviations and intervals, held to SciPy's."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from remnant.report.spread import Spread, student_quantile, welch

values = st.lists(st.integers(0, 10_000).map(lambda n: n / 100), min_size=2, max_size=8)


@given(st.floats(1, 1e4), st.sampled_from([0.9, 0.95, 0.975, 0.99]))
def test_students_quantile(freedom: float, probability: float) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-7)


@pytest.mark.filterwarnings("ignore:Precision loss")
@given(values, values)
def test_welchs_interval(a: list[float], b: list[float]) -> None:
    assume(len({*a}) > 1 or len({*b}) > 1)
    interval = welch(Spread.of(a), Spread.of(b))
    slow = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((slow.low, slow.high), rel=1e-6, abs=1e-6)


def test_one_value_has_no_spread_and_no_interval() -> None:
    assert Spread.of([3.0]) == Spread(3.0, None, 1)
    assert welch(Spread.of([3.0]), Spread.of([1.0, 2.0])) is None


def test_a_mean_over_fewer_than_there_are_is_none() -> None:
    assert Spread.of([1.0, None]) == Spread.of([]) == Spread.of([float("nan"), 1.0]) == Spread()


def test_no_spread_at_all_is_an_interval_of_no_width() -> None:
    interval = welch(Spread.of([2.0, 2.0]), Spread.of([1.0, 1.0]))
    assert interval == (1.0, 1.0, 1.0)
    assert interval is not None
    assert interval.settled
