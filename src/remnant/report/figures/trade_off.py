"""Stability against plasticity: how much is forgotten, and how well new tasks are learnt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from remnant.experiments.runs.paths import folder_name

from ..names import benchmark_title, ordered_methods
from ..variants import Collection
from .drawing import Drawing
from .labels import footnote, label_with_seeds
from .style import FAINT, INK, canvas, legend_below, method_look


def trade_off(collection: Collection, benchmark: str) -> Drawing | None:
    found = {variant.method: variant for variant in collection.mains(benchmark)}
    points = []
    for method in ordered_methods(found):
        la, bwt = found[method].learning_accuracy, found[method].bwt
        if la.mean is not None and bwt.mean is not None:
            point = {"method": method, "title": label_with_seeds(found[method]), "la": la.mean, "la_sd": la.sd or 0.0}
            points.append({**point, "bwt": 100 * bwt.mean, "bwt_sd": 100 * (bwt.sd or 0.0)})
    if not points:
        return None
    words = "; ".join(f"{p['title']} learns {p['la']:.1f} % and moves by {p['bwt']:+.1f} points" for p in points)
    return Drawing(
        f"trade-off-{folder_name(benchmark)}",
        f"{benchmark_title(benchmark)}: learning against keeping",
        f"Learning accuracy and backward transfer of each method on {benchmark_title(benchmark)}: {words}.",
        {"points": points},
        draw,
        footnote(found.values()),
    )


def draw(data: Mapping[str, Any]) -> Figure:
    figure, axes = canvas()
    for point in data["points"]:
        look = method_look(point["method"])
        axes.errorbar(
            point["la"],
            point["bwt"],
            xerr=point["la_sd"],
            yerr=point["bwt_sd"],
            fmt=look.marker,
            color=look.colour,
            markeredgecolor=INK,
            markersize=8,
            markeredgewidth=0.7,
            capsize=3,
            linestyle="none",
            label=point["title"],
        )
    axes.axhline(0, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
    axes.margins(0.15)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("learning accuracy, % (right: learns more)")
    axes.set_ylabel("BWT, points (up: forgets less)")
    legend_below(figure, axes)
    return figure
