"""How one method's runs went: accuracy over the sequence, and loss over the epochs where they were kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from remnant.evaluation import AccuracyMatrix, average_accuracy
from remnant.experiments.runs.paths import folder_name

from ..names import benchmark_title, method_title
from ..variants import Variant
from .drawing import Drawing
from .style import canvas, legend_below, look

MOST_POINTS = 300  # a line on a page shows no more


def sequence_curve(variant: Variant) -> Drawing | None:
    """ACC after each task, seed by seed."""
    lines = []
    for run in (*variant.runs, *variant.unfinished):
        if run.matrix is not None and (acc := _averages(run.matrix)):
            lines.append({"label": f"seed {run.seed}" + ("" if run.measured else ", unfinished"), "y": acc})
    if not _is_curve(lines):
        return None
    ends = ", ".join(f"{line['label']} {line['y'][-1][1]:.1f} %" for line in lines)
    return Drawing(
        f"sequence-{_mark(variant)}",
        "Mean accuracy on the tasks so far",
        f"Mean accuracy of {method_title(variant.method)} on the tasks of {benchmark_title(variant.benchmark)} learnt so far, "
        f"after each; at the end {ends}.",
        {"lines": lines, "x": "tasks learnt", "y": "ACC so far, %"},
        draw,
    )


def metric_curves(variant: Variant) -> list[Drawing]:
    """Loss and validation accuracy by epoch, from metrics.jsonl."""
    return [
        drawing
        for key, title, scale in (("loss", "Training loss", 1.0), ("valid_accuracy", "Validation accuracy, %", 100.0))
        if (drawing := _metric(variant, key, title, scale))
    ]


def _metric(variant: Variant, key: str, title: str, scale: float) -> Drawing | None:
    lines = []
    for run in (*variant.runs, *variant.unfinished):
        values = [(n + 1, line.get(key)) for n, line in enumerate(run.metrics)]
        known = [[n, scale * v] for n, v in values if isinstance(v, int | float) and isfinite(v)]
        if known:
            lines.append({"label": f"seed {run.seed}", "y": _thinned(known)})
    if not _is_curve(lines):
        return None
    ends = ", ".join(f"{line['label']} {line['y'][-1][1]:.3g}" for line in lines)
    return Drawing(
        f"{key.replace('_', '-')}-{_mark(variant)}",
        f"{title}, by epoch",
        f"{title} over all epochs of all tasks; at the end {ends}.",
        {"lines": lines, "x": "epochs, over all tasks", "y": title},
        draw,
    )


def _is_curve(lines: Sequence[Mapping[str, Any]]) -> bool:
    """One point a seed is none: the table of seeds says all of it (joint training)."""
    return any(len(line["y"]) > 1 for line in lines)


def _mark(variant: Variant) -> str:
    return f"{folder_name(variant.benchmark)}-{folder_name(variant.method)}-{variant.digest}"


def _averages(matrix: AccuracyMatrix) -> list[list[float]]:
    found = [[t + 1.0, 100 * average_accuracy(matrix, t)] for t in range(matrix.learned)]
    return [point for point in found if isfinite(point[1])]


def _thinned(points: Sequence[list[float]]) -> list[list[float]]:
    """Every so manieth point, and the last."""
    step = -(-len(points) // MOST_POINTS)
    return [*points[:-1:step], points[-1]]


def draw(data: Mapping[str, Any]) -> Figure:
    figure, axes = canvas()
    for number, line in enumerate(data["lines"]):
        colour, marker, dash = look(number)
        x, y = zip(*line["y"], strict=True)
        few = len(x) <= 25
        axes.plot(
            x, y, color=colour, marker=marker if few else None, linestyle=dash, linewidth=1.4, label=line["label"]
        )
    axes.set_xlabel(data["x"])
    axes.set_ylabel(data["y"])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_below(figure, axes)
    return figure
