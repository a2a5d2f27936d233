"""Accuracy of task 1 over the sequence, all methods (the appendix's figure of the same name)."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from remnant.experiments.runs.paths import folder_name

from ..names import benchmark_title, ordered_methods
from ..spread import Spread
from ..variants import Collection, Variant
from .drawing import Drawing
from .labels import footnote, label_with_seeds
from .style import canvas, legend_below, method_look


def first_task(collection: Collection, benchmark: str) -> Drawing | None:
    found = {variant.method: variant for variant in collection.mains(benchmark)}
    lines = [_line(found[method]) for method in ordered_methods(found)]
    lines = [line for line in lines if any(mean is not None for mean in line["mean"])]
    if not lines:
        return None
    ends = ", ".join(f"{line['title']} {_last(line['mean']):.1f} %" for line in lines)
    return Drawing(
        f"first-task-{folder_name(benchmark)}",
        f"{benchmark_title(benchmark)}: task 1 as later tasks are learnt",
        f"Accuracy on task 1 after each further task of {benchmark_title(benchmark)}. At the end: {ends}.",
        {"lines": lines},
        draw,
        footnote(found.values()),
    )


def _line(variant: Variant) -> dict[str, Any]:
    columns = [run.matrix.values[:, 0].tolist() for run in variant.runs if run.matrix is not None]
    spreads = [Spread.of([None if isnan(x) else 100 * x for x in after]) for after in zip(*columns, strict=False)]
    return {
        "method": variant.method,
        "title": label_with_seeds(variant),
        "mean": [spread.mean for spread in spreads],
        "sd": [spread.sd for spread in spreads],
    }


def _last(means: list[float | None]) -> float:
    return next(mean for mean in reversed(means) if mean is not None)


def draw(data: Mapping[str, Any]) -> Figure:
    figure, axes = canvas()
    for line in data["lines"]:
        look = method_look(line["method"])
        points = [
            (t + 1, m, s or 0.0) for t, (m, s) in enumerate(zip(line["mean"], line["sd"], strict=True)) if m is not None
        ]
        at, mean, sd = (list(column) for column in zip(*points, strict=True))
        axes.plot(at, mean, color=look.colour, marker=look.marker, linestyle=look.dash, label=line["title"])
        low, high = ([min(max(m + sign * s, 0), 100) for m, s in zip(mean, sd, strict=True)] for sign in (-1, 1))
        axes.fill_between(at, low, high, color=look.colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("tasks learnt")
    axes.set_ylabel("accuracy on task 1, %")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_below(figure, axes)
    return figure
