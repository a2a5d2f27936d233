"""Ours against the paper's: within the spread of the two, better, or worse."""

from __future__ import annotations

from math import sqrt

from remnant.experiments.paper.tables import Figure

from .spread import CONFIDENCE, Spread, student_quantile, welch

WITHIN, BETTER, WORSE, CANNOT_SAY = "within", "better", "worse", "cannot say"
PAPER_RUNS = 5
ROUNDING = {"acc": 0.005, "bwt": 0.005, "capacity": 0.5}  # half of the last digit the paper prints
LESS_IS_BETTER = ("capacity",)

EXPLANATION = (
    "Within: the 95 % interval of the difference (Welch; the paper's means are of five runs and rounded) holds zero. "
    "Better, worse: it does not. Where the paper gives no standard deviation, its mean is taken as exact; where we have one "
    "seed, the paper's deviation stands for ours; with neither, nobody can say. No mark on times: other machines."
)


def verdict(column: str, ours: Spread, paper: Figure) -> str:
    """One of the words above; empty where there is nothing to compare."""
    if ours.mean is None or paper.mean is None or column not in ROUNDING:
        return ""
    half = _half(ours, paper, ROUNDING[column])
    difference = ours.mean - paper.mean
    exact = ROUNDING[column] + 1e-9
    if half is None:
        return WITHIN if abs(difference) <= exact else CANNOT_SAY
    if abs(difference) <= half + 1e-9:
        return WITHIN
    return BETTER if (difference > 0) != (column in LESS_IS_BETTER) else WORSE


def _half(ours: Spread, paper: Figure, rounding: float) -> float | None:
    """Half the width of the interval; None where neither side has a spread."""
    theirs = Spread(paper.mean, paper.sd, PAPER_RUNS)
    if interval := welch(ours, theirs, rounding):
        return (interval.high - interval.low) / 2
    level = (1 + CONFIDENCE) / 2
    if ours.sd is not None:
        return rounding + student_quantile(level, ours.n - 1) * ours.sd / sqrt(ours.n)
    if paper.sd is not None:
        return rounding + student_quantile(level, PAPER_RUNS - 1) * paper.sd * sqrt(1 + 1 / PAPER_RUNS)
    return None
