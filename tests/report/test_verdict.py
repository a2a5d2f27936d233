"""Within, better, worse: from the spread of both, and not from a feeling."""

import pytest

from remnant.experiments.paper.tables import Figure
from remnant.report.spread import Spread
from remnant.report.verdict import verdict


@pytest.mark.parametrize(
    ("ours", "paper", "word"),
    [
        (Spread(93.76, 0.29, 5), Figure(93.91, 0.16), "within"),
        (Spread(71.67, 0.16, 5), Figure(72.48, 0.40), "worse"),
        (Spread(75.00, 0.16, 5), Figure(72.48, 0.40), "better"),
        (Spread(60.77, 2.12, 5), Figure(70.67, None), "worse"),  # the paper's mean as exact
        (Spread(69.16, 3.17, 5), Figure(70.67, None), "within"),
        (Spread(93.60, None, 1), Figure(93.91, 0.16), "within"),  # one seed: the paper's spread for ours
        (Spread(90.00, None, 1), Figure(93.91, 0.16), "worse"),
        (Spread(90.00, None, 1), Figure(93.91, None), "cannot say"),
        (Spread(93.912, None, 1), Figure(93.91, None), "within"),  # as printed
        (Spread(), Figure(93.91, 0.16), ""),
        (Spread(93.91, 0.1, 5), Figure(), ""),
    ],
)
def test_accuracy(ours: Spread, paper: Figure, word: str) -> None:
    assert verdict("acc", ours, paper) == word


def test_less_capacity_is_better_and_times_are_not_compared() -> None:
    assert verdict("capacity", Spread(90.0, 0.0, 5), Figure(100.0)) == "better"
    assert verdict("capacity", Spread(120.0, 0.0, 5), Figure(100.0)) == "worse"
    assert verdict("seconds", Spread(1.0, 0.1, 5), Figure(100.0)) == ""


def test_what_the_paper_rounds_away_is_not_held_against_us() -> None:
    assert verdict("bwt", Spread(-0.0049, 0.0, 5), Figure(0.00, 0.00)) == "within"
    assert verdict("bwt", Spread(-0.0151, 0.0, 5), Figure(-0.01, 0.00)) == "worse"
