"""Intervals equal SciPy's, and verdicts follow from the spread of both sides."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from remnant.evaluation import Spread
from remnant.report.statistics import verdict, welch

values = st.lists(st.integers(0, 10_000).map(lambda n: n / 100), min_size=2, max_size=8)


@pytest.mark.filterwarnings("ignore:Precision loss")
@given(values, values)
def test_welchs_interval(a: list[float], b: list[float]) -> None:
    assume(len({*a}) > 1 or len({*b}) > 1)
    interval = welch(Spread.of(a), Spread.of(b))
    slow = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert interval is not None
    assert interval == pytest.approx((slow.low, slow.high), rel=1e-6, abs=1e-6)


def test_one_value_has_no_spread_and_no_interval() -> None:
    assert Spread.of([3.0]) == Spread(3.0, None, 1)
    assert welch(Spread.of([3.0]), Spread.of([1.0, 2.0])) is None


def test_a_missing_value_leaves_no_mean() -> None:
    assert Spread.of([1.0, None]) == Spread.of([]) == Spread.of([float("nan"), 1.0]) == Spread()


def test_equal_values_give_an_interval_of_no_width() -> None:
    assert welch(Spread.of([2.0, 2.0]), Spread.of([1.0, 1.0])) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("ours", "paper", "word"),
    [
        (Spread(93.76, 0.29, 5), Spread(93.91, 0.16), "within"),
        (Spread(71.67, 0.16, 5), Spread(72.48, 0.40), "worse"),
        (Spread(75.00, 0.16, 5), Spread(72.48, 0.40), "better"),
        (Spread(60.77, 2.12, 5), Spread(70.67, None), "worse"),  # the paper's mean as exact
        (Spread(69.16, 3.17, 5), Spread(70.67, None), "within"),
        (Spread(93.60, None, 1), Spread(93.91, 0.16), "within"),  # one seed: the paper's spread for ours
        (Spread(90.00, None, 1), Spread(93.91, 0.16), "worse"),
        (Spread(90.00, None, 1), Spread(93.91, None), "cannot say"),
        (Spread(93.912, None, 1), Spread(93.91, None), "within"),  # as printed
        (Spread(), Spread(93.91, 0.16), ""),
        (Spread(93.91, 0.1, 5), Spread(), ""),
    ],
)
def test_accuracy(ours: Spread, paper: Spread, word: str) -> None:
    assert verdict("acc", ours, paper) == word


def test_less_capacity_is_better_and_times_are_not_compared() -> None:
    assert verdict("capacity", Spread(90.0, 0.0, 5), Spread(100.0)) == "better"
    assert verdict("capacity", Spread(120.0, 0.0, 5), Spread(100.0)) == "worse"
    assert verdict("seconds", Spread(1.0, 0.1, 5), Spread(100.0)) == ""


def test_the_papers_rounding_widens_the_interval() -> None:
    assert verdict("bwt", Spread(-0.0049, 0.0, 5), Spread(0.00, 0.00)) == "within"
    assert verdict("bwt", Spread(-0.0151, 0.0, 5), Spread(-0.01, 0.00)) == "worse"
