"""The accuracy matrix R[t, i] of one method as a heat map."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Any

from matplotlib import colormaps
from matplotlib.figure import Figure

from remnant.experiments.runs.paths import folder_name

from ..names import benchmark_title, method_title
from ..spread import Spread
from ..variants import Collection, Variant
from .drawing import Drawing
from .style import canvas


def heat_map(variant: Variant, collection: Collection) -> Drawing | None:
    matrices = [run.matrix.values for run in variant.runs if run.matrix is not None]
    if not matrices or len({matrix.shape for matrix in matrices}) > 1:
        return None
    tasks = len(matrices[0])
    means = [
        [Spread.of([None if isnan(m[t, i]) else 100 * float(m[t, i]) for m in matrices]).mean for i in range(t + 1)]
        for t in range(tasks)
    ]
    kept = variant.acc.mean or 0.0
    return Drawing(
        f"matrix-{folder_name(variant.benchmark)}-{folder_name(variant.method)}-{variant.digest}",
        "Accuracy matrix, %",
        f"Accuracy of {method_title(variant.method)} on each of {tasks} tasks of {benchmark_title(variant.benchmark)} after "
        f"each task learnt, mean over {len(matrices)} seed(s); on average {kept:.1f} % at the end. The numbers are in the "
        "table of accuracies below it.",
        {"rows": means, "scale": _scale(collection.of(variant.benchmark))},
        draw,
    )


def _scale(variants: list[Variant]) -> list[int]:
    """Whole tens around every accuracy on the benchmark: two heat maps of it can be compared."""
    seen = [
        m.values[t, i]
        for v in variants
        for r in v.runs
        if (m := r.matrix)
        for t in range(m.tasks)
        for i in range(t + 1)
    ]
    known = [100 * float(value) for value in seen if not isnan(value)]
    return [int(min(known) // 10 * 10), int(-(-max(known) // 10) * 10)]


def draw(data: Mapping[str, Any]) -> Figure:
    rows = data["rows"]
    tasks = len(rows)
    low, high = data["scale"]
    side = min(4.8, 2.2 + 0.32 * tasks)
    figure, axes = canvas(side, side)
    colours = colormaps["cividis"]
    for t, row in enumerate(rows):
        for i, value in enumerate(row):
            if value is None:
                continue
            share = (value - low) / (high - low) if high > low else 1.0
            red, green, blue, _ = colours(share)
            axes.fill([i, i + 1, i + 1, i], [t, t, t + 1, t + 1], color=(red, green, blue), linewidth=0)
            ink = "#000000" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.45 else "#ffffff"
            axes.text(
                i + 0.5, t + 0.5, f"{value:.0f}", color=ink, ha="center", va="center", fontsize=9 if tasks < 13 else 6.5
            )
    axes.set_xlim(0, tasks)
    axes.set_ylim(tasks, 0)
    axes.set_aspect("equal")
    every = range(0, tasks, 1 if tasks < 13 else 2)
    axes.set_xticks([i + 0.5 for i in every], [str(i + 1) for i in every])
    axes.set_yticks([i + 0.5 for i in every], [str(i + 1) for i in every])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("accuracy on task")
    axes.set_ylabel("after task")
    return figure
