"""Compares means: paired and Welch's intervals for two methods, and a verdict on our result against the paper's."""

from collections.abc import Sequence
from math import sqrt

from remnant.evaluation import Spread

WITHIN, BETTER, WORSE, CANNOT_SAY = "within", "better", "worse", "cannot say"
PAPER_RUNS = 5
ROUNDING = {"acc": 0.005, "bwt": 0.005, "capacity": 0.5}  # half of the last digit that the paper prints
LESS_IS_BETTER = ("capacity",)


def welch(a: Spread, b: Spread) -> tuple[float, float] | None:
    """The 95 % confidence interval of the difference of two means whose variances may differ; None without deviations.

    It is d ± t_ν·√(v_a + v_b) with v = s²/n and ν = (v_a + v_b)² / (v_a²/(n_a − 1) + v_b²/(n_b − 1)).
    """
    if a.mean is None or b.mean is None or a.sd is None or b.sd is None:
        return None
    v_a, v_b = a.sd**2 / a.n, b.sd**2 / b.n
    half = 0.0
    if v_a + v_b > 0:
        freedom = (v_a + v_b) ** 2 / (v_a**2 / (a.n - 1) + v_b**2 / (b.n - 1))
        half = t_quantile(freedom) * sqrt(v_a + v_b)
    difference = a.mean - b.mean
    return difference - half, difference + half


def paired(differences: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % confidence interval of the mean of differences d_i, one for each seed; None with fewer than two.

    It is d ± t_{n−1}·s/√n. What a seed does to both methods, such as a hard order of tasks, cancels.
    """
    spread = Spread.of(differences)
    if spread.mean is None or spread.sd is None:
        return None
    half = t_quantile(spread.n - 1) * spread.sd / sqrt(spread.n)
    return spread.mean - half, spread.mean + half


def t_quantile(freedom: float) -> float:
    """Student's t for a two-sided 95 % interval."""
    from scipy.stats import t  # type: ignore[import-untyped]  # takes a second to import

    return float(t.ppf(0.975, freedom))


def verdict(quantity: str, ours: Spread, paper: Spread) -> str:
    """Says whether our mean is within the spread of both, better or worse; empty if there is nothing to compare."""
    if ours.mean is None or paper.mean is None or quantity not in ROUNDING:
        return ""
    difference = ours.mean - paper.mean
    half = _half_width(ours, paper)
    if abs(difference) <= (half or 0.0) + ROUNDING[quantity] + 1e-9:
        return WITHIN
    if half is None:
        return CANNOT_SAY
    return BETTER if (difference > 0) != (quantity in LESS_IS_BETTER) else WORSE


def _half_width(ours: Spread, paper: Spread) -> float | None:
    """Half the width of the interval; None if neither side has a deviation."""
    if interval := welch(ours, Spread(paper.mean, paper.sd, PAPER_RUNS)):
        return (interval[1] - interval[0]) / 2
    if ours.sd is not None:
        return t_quantile(ours.n - 1) * ours.sd / sqrt(ours.n)
    if paper.sd is not None:
        return t_quantile(PAPER_RUNS - 1) * paper.sd * sqrt(1 + 1 / PAPER_RUNS)
    return None
