"""Figures of one method's runs: accuracy matrix, accuracy over the sequence, losses, and ranks of the memory."""

from collections.abc import Mapping
from itertools import accumulate
from math import isfinite
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from remnant.evaluation import average_accuracy

from ..names import benchmark_title, method_title
from ..ranks import capacities, mean_ranks
from ..variants import Collection, Variant
from .drawing import Drawing
from .style import INK, REFERENCE, canvas, legend_below, look

MOST_POINTS = 300  # of one line
MOST_LAYERS = 8  # that lines can show; with more layers, a band shows all, and lines the fullest and the emptiest


def variant_drawings(collection: Collection, variant: Variant) -> list[Drawing]:
    """All figures of one set of settings."""
    found = [heat_map(variant, collection), sequence_curve(variant), rank_growth(variant)]
    found += [_metric_curve(variant, "loss", "Training loss", 1.0)]
    found += [_metric_curve(variant, "valid_accuracy", "Validation accuracy, %", 100.0)]
    return [drawing for drawing in found if drawing is not None]


def heat_map(variant: Variant, collection: Collection) -> Drawing | None:
    """The accuracy matrix R[t, i]. All heat maps of a benchmark share one scale, so that they can be compared."""
    matrix = variant.mean_matrix()
    if matrix is None:
        return None
    method, benchmark = method_title(variant.method), benchmark_title(variant.benchmark)
    matrices = [run.matrix for other in collection.of(variant.benchmark) for run in other.runs if run.matrix]
    seen = 100 * np.concatenate([each.values[np.tril_indices(each.tasks)] for each in matrices])
    scale = [int(np.nanmin(seen) // 10 * 10), int(-(-np.nanmax(seen) // 10) * 10)]
    return Drawing(
        f"matrix-{variant.slug}",
        "Accuracy matrix, %",
        f"Accuracy of {method} on each of {len(matrix)} tasks of {benchmark} after each task learnt, mean over "
        f"{len(variant.runs)} seed(s); on average {variant.acc.mean or 0.0:.1f} % at the end. The numbers are in the table of "
        "accuracies below it.",
        {"rows": [row[: t + 1] for t, row in enumerate(matrix)], "scale": scale},
        draw_heat_map,
    )


def draw_heat_map(data: Mapping[str, Any]) -> Figure:
    rows, (low, high) = data["rows"], data["scale"]
    tasks = len(rows)
    side = min(4.8, 2.2 + 0.32 * tasks)
    figure, axes = canvas(side, side)
    for t, row in enumerate(rows):
        for i, value in enumerate(row):
            if value is not None:
                red, green, blue, _ = colormaps["cividis"]((value - low) / (high - low) if high > low else 1.0)
                axes.fill([i, i + 1, i + 1, i], [t, t, t + 1, t + 1], color=(red, green, blue), linewidth=0)
                ink = "#000000" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.45 else "#ffffff"
                text = {"color": ink, "ha": "center", "va": "center", "fontsize": 9 if tasks < 13 else 6.5}
                axes.text(i + 0.5, t + 0.5, f"{value:.0f}", **text)
    axes.set_xlim(0, tasks)
    axes.set_ylim(tasks, 0)
    axes.set_aspect("equal")
    shown = range(0, tasks, 1 if tasks < 13 else 2)
    axes.set_xticks([i + 0.5 for i in shown], [str(i + 1) for i in shown])
    axes.set_yticks([i + 0.5 for i in shown], [str(i + 1) for i in shown])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="accuracy on task", ylabel="after task")
    return figure


def sequence_curve(variant: Variant) -> Drawing | None:
    """ACC after each task, a line for each seed."""
    lines = []
    for run in variant.all_runs:
        averages = [[t + 1.0, 100 * average_accuracy(run.matrix, t)] for t in range(run.learned) if run.matrix]
        points = [point for point in averages if isfinite(point[1])]
        if points:
            lines.append({"label": f"seed {run.seed}" + ("" if run.result else ", unfinished"), "y": points})
    if not any(len(line["y"]) > 1 for line in lines):
        return None
    ends = ", ".join(f"{line['label']} {line['y'][-1][1]:.1f} %" for line in lines)
    return Drawing(
        f"sequence-{variant.slug}",
        "Mean accuracy on the tasks so far",
        f"Mean accuracy of {method_title(variant.method)} on the tasks of {benchmark_title(variant.benchmark)} learnt so far, "
        f"after each; at the end {ends}.",
        {"lines": lines, "x": "tasks learnt", "y": "ACC so far, %"},
        draw_curves,
    )


def _metric_curve(variant: Variant, key: str, title: str, scale: float) -> Drawing | None:
    """A column of metrics.jsonl by epoch, a line for each seed."""
    lines = []
    for run in variant.all_runs:
        values = [(epoch, line.get(key)) for epoch, line in enumerate(run.metrics, 1)]
        points = [[epoch, scale * v] for epoch, v in values if isinstance(v, int | float) and isfinite(v)]
        if points:
            step = -(-len(points) // MOST_POINTS)
            lines.append({"label": f"seed {run.seed}", "y": [*points[:-1:step], points[-1]]})
    if not any(len(line["y"]) > 1 for line in lines):
        return None
    ends = ", ".join(f"{line['label']} {line['y'][-1][1]:.3g}" for line in lines)
    return Drawing(
        f"{key.replace('_', '-')}-{variant.slug}",
        f"{title}, by epoch",
        f"{title} over all epochs of all tasks; at the end {ends}.",
        {"lines": lines, "x": "epochs, over all tasks", "y": title},
        draw_curves,
    )


def draw_curves(data: Mapping[str, Any]) -> Figure:
    figure, axes = canvas()
    for number, line in enumerate(data["lines"]):
        colour, marker, dash = look(number)
        x, y = zip(*line["y"], strict=True)
        shown = marker if len(x) <= 25 else None
        axes.plot(x, y, color=colour, marker=shown, linestyle=dash, linewidth=1.4, label=line["label"])
    axes.set(xlabel=data["x"], ylabel=data["y"])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_below(figure, axes)
    return figure


def rank_growth(variant: Variant) -> Drawing | None:
    """The rank of each layer's basis relative to its capacity, after each task."""
    capacity = capacities(variant)
    layers: list[dict[str, Any]] = []
    for layer, added in mean_ranks(variant).items():
        if layer in capacity and added:
            shares = [100 * rank / capacity[layer] for rank in accumulate(k.mean or 0.0 for k in added)]
            layers.append({"layer": layer, "capacity": capacity[layer], "share": shares})
    if not layers:
        return None
    ends = ", ".join(f"{each['layer']} {each['share'][-1]:.0f} % of {each['capacity']}" for each in layers)
    return Drawing(
        f"ranks-{variant.slug}",
        f"{benchmark_title(variant.benchmark)}: how full the memory of {method_title(variant.method)} gets",
        f"Share of each layer's input space in the memory after each task; after the last: {ends}.",
        {"layers": layers},
        draw_rank_growth,
    )


def draw_rank_growth(data: Mapping[str, Any]) -> Figure:
    figure, axes = canvas()
    layers = shown = data["layers"]
    if len(layers) > MOST_LAYERS:
        ordered = sorted(layers, key=lambda layer: layer["share"][-1])
        shown = sorted([*ordered[:3], *ordered[-4:]], key=layers.index)
        columns = list(zip(*(layer["share"] for layer in layers), strict=False))
        band = {"color": INK, "alpha": 0.12, "linewidth": 0, "label": f"all {len(layers)} layers"}
        axes.fill_between(range(1, len(columns) + 1), list(map(min, columns)), list(map(max, columns)), **band)
    for number, layer in enumerate(shown):
        colour, marker, dash = look(number)
        label = f"{layer['layer']} (n = {layer['capacity']})"
        tasks = range(1, len(layer["share"]) + 1)
        axes.plot(tasks, layer["share"], color=colour, marker=marker, linestyle=dash, label=label)
    axes.set_ylim(0, 104)
    axes.axhline(100, color=INK, **REFERENCE)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="tasks learnt", ylabel="rank k, % of capacity n")
    legend_below(figure, axes)
    return figure
