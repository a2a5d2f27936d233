"""A picture of a comparison: ACC of every seed, and each method's distance from the best with its interval."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from ..comparison import BEST, MEASURES, Comparison, Row
from ..names import short_title, shortened, slug
from .drawing import FAINT, INK, REFERENCE, Drawing, canvas
from .methods import method_look

ACC = MEASURES["acc"]
LONGEST_LABEL = 34


def comparison_drawing(comparison: Comparison) -> Drawing:
    """Draws the methods from the best to the worst, and bounds below them."""
    entries = [_entry(row, comparison.label(row)) for row in comparison.rows]
    words = "; ".join(f"{entry['title']} {entry['mean']:.1f} %" for entry in entries)
    best = "" if len(entries) == 1 else ", and its difference from the best"
    alt = f"ACC of each method on {comparison.title}{best}: {words}."
    name = f"comparison-{slug(comparison.benchmark, *comparison.stream)}"
    return Drawing(name, comparison.title, alt, {"rows": entries, "title": comparison.title}, draw_comparison)


def _entry(row: Row, settings: str) -> dict[str, Any]:
    estimate = row.estimates["acc"]
    label = short_title(row.variant.method) + (f": {settings}" if settings else "")
    return {
        "method": row.variant.method,
        "title": shortened(label, LONGEST_LABEL),
        "bound": row.bound,
        "best": estimate.mark == BEST,
        "mean": ACC.scale * (estimate.value.mean or 0.0),
        "seeds": [ACC.scale * (ACC.of(run) or 0.0) for run in row.variant.runs],
        "difference": None if estimate.difference is None else ACC.scale * estimate.difference,
        "interval": [ACC.scale * bound for bound in estimate.interval or ()],
    }


def draw_comparison(data: Mapping[str, Any]) -> Figure:
    rows = data["rows"]
    compared = any(row["difference"] is not None for row in rows)
    figure, axes = canvas(8.2, 1.4 + 0.34 * len(rows), ncols=1 + compared, sharey=True, squeeze=False)
    left = axes[0, 0]
    for y, row in enumerate(rows):
        own = method_look(row["method"])
        point: dict[str, Any] = {"color": own["color"], "marker": own["marker"], "linestyle": "none"}
        seeds = point | {"marker": "|", "markersize": 16, "markeredgewidth": 1.6}
        left.plot(row["mean"], y, **point, markersize=7, markeredgecolor=INK, markeredgewidth=0.8)
        left.plot(row["seeds"], [y] * len(row["seeds"]), **seeds)
        if compared:
            _difference(axes[0, 1], y, row, point)
    left.set_yticks(range(len(rows)), [f"{row['title']} *" if row["best"] else row["title"] for row in rows])
    left.set(ylim=(len(rows) - 0.4, -0.6), xlabel="ACC, % (| one seed)")
    if compared:
        axes[0, 1].axvline(0, color=FAINT, **REFERENCE)
        axes[0, 1].set_xlabel("difference, points (95 %)")
    for each in axes[0]:
        each.tick_params(axis="y", length=0)
    figure.suptitle(data["title"], fontsize=11)
    return figure


def _difference(axes: Any, y: int, row: Mapping[str, Any], point: Mapping[str, Any]) -> None:
    """The difference and its interval; hollow if there is none. The best has no difference from itself."""
    if row["difference"] is None:
        return
    if row["interval"]:
        axes.plot(row["interval"], [y, y], color=point["color"], linewidth=2, marker="|", markersize=8)
    face = {} if row["interval"] else {"markerfacecolor": "none"}
    axes.plot(row["difference"], y, **point, markersize=7, markeredgecolor=INK, markeredgewidth=0.8, **face)
