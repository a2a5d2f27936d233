"""Figures of one method's runs: accuracy matrix, accuracy over the sequence, losses, and ranks of the memory."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from math import isfinite
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from remnant.evaluation import average_accuracy

from ..names import benchmark_title, method_title
from ..variants import Collection, Variant
from .drawing import INK, REFERENCE, Drawing, canvas, finish, look

Lines = Mapping[str, Sequence[tuple[float, float]]]  # points by label

MOST_POINTS = 300  # of one line
MOST_SEEDS = 12  # that have a line of their own; of more seeds, lines show the mean, the lowest and the highest
MOST_MARKERS = 25  # of one line
MOST_LAYERS = 8  # that lines can show; with more layers, a band shows all, and lines the fullest and the emptiest


def variant_drawings(collection: Collection, variant: Variant) -> list[Drawing]:
    """All figures of one set of settings."""
    loss = metric_curve(variant, "loss", "Training loss", 1.0)
    accuracy = metric_curve(variant, "valid_accuracy", "Validation accuracy, %", 100.0)
    found = heat_map(variant, collection), sequence_curve(variant), rank_growth(variant), loss, accuracy
    return [drawing for drawing in found if drawing is not None]


def heat_map(variant: Variant, collection: Collection) -> Drawing | None:
    """The accuracy matrix R[t, i]. All heat maps of a benchmark share one scale, so that they can be compared."""
    matrix = variant.mean_matrix()
    if matrix is None:
        return None
    matrices = [run.matrix for other in collection.of(variant.benchmark) for run in other.runs if run.matrix]
    seen = 100 * np.concatenate([each.values[np.tril_indices(each.tasks)] for each in matrices])
    scale = [int(np.nanmin(seen) // 10 * 10), int(-(-np.nanmax(seen) // 10) * 10)]
    alt = (
        f"Accuracy of {method_title(variant.method)} on each of {len(matrix)} tasks of {benchmark_title(variant.benchmark)} "
        f"after each task learnt, mean over seeds ({len(variant.runs)}); on average {variant.acc.mean or 0.0:.1f} % at the "
        "end. The numbers are in the table of accuracies below it."
    )
    data = {"rows": [row[: t + 1] for t, row in enumerate(matrix)], "scale": scale}
    return Drawing(f"matrix-{variant.slug}", "Accuracy matrix, %", alt, data, draw_heat_map)


def draw_heat_map(data: Mapping[str, Any]) -> Figure:
    rows, (low, high) = data["rows"], data["scale"]
    tasks = len(rows)
    side = min(4.8, 2.2 + 0.32 * tasks)
    figure, axes = canvas(side, side)
    squares, colours = [], []
    for t, row in enumerate(rows):
        for i, value in enumerate(row):
            if value is not None:
                red, green, blue, _ = colormaps["cividis"]((value - low) / (high - low) if high > low else 1.0)
                squares.append([(i, t), (i + 1, t), (i + 1, t + 1), (i, t + 1)])
                colours.append((red, green, blue))
                ink = "#000000" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.45 else "#ffffff"
                text = {"color": ink, "ha": "center", "va": "center", "fontsize": 9 if tasks < 13 else 6.5}
                axes.text(i + 0.5, t + 0.5, f"{value:.0f}", **text)
    axes.add_collection(PolyCollection(squares, facecolors=colours, linewidths=0), autolim=False)
    shown = np.arange(0, tasks, 1 if tasks < 13 else 2)
    axes.set(xlim=(0, tasks), ylim=(tasks, 0), aspect="equal", xlabel="accuracy on task", ylabel="after task")
    axes.set_xticks(shown + 0.5, shown + 1)
    axes.set_yticks(shown + 0.5, shown + 1)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    return figure


def sequence_curve(variant: Variant) -> Drawing | None:
    """ACC after each task, a line for each seed."""
    lines = {}
    for run in variant.all_runs:
        averages = [(t + 1.0, 100 * average_accuracy(run.matrix, t)) for t in range(run.learned) if run.matrix]
        lines[f"seed {run.seed}" + ("" if run.result else ", unfinished")] = averages
    alt = f"Mean accuracy of {method_title(variant.method)} on the tasks of {benchmark_title(variant.benchmark)} learnt so far"
    names = f"sequence-{variant.slug}", "Mean accuracy on the tasks so far", f"{alt}, after each"
    return _curves(names, lines, {"x": "tasks learnt", "y": "ACC so far, %"}, "{:.1f} %")


def metric_curve(variant: Variant, key: str, title: str, scale: float) -> Drawing | None:
    """A column of metrics.jsonl by epoch, a line for each seed."""
    lines = {}
    for run in variant.all_runs:
        values = [(epoch, line.get(key)) for epoch, line in enumerate(run.metrics, 1)]
        lines[f"seed {run.seed}"] = [(epoch, scale * v) for epoch, v in values if isinstance(v, int | float)]
    names = f"{key.replace('_', '-')}-{variant.slug}", f"{title}, by epoch", f"{title} over all epochs of all tasks"
    return _curves(names, lines, {"x": "epochs, over all tasks", "y": title}, "{:.3g}")


def _curves(names: tuple[str, str, str], lines: Lines, axes: dict[str, str], form: str) -> Drawing | None:
    """A figure of these lines, unless none of them has two points. `form` formats their ends for the description."""
    shown = []
    for label, points in (lines if len(lines) <= MOST_SEEDS else _summary(lines)).items():
        finite = [list(point) for point in points if isfinite(point[1])]
        step = -(-len(finite) // MOST_POINTS) or 1
        shown += [{"label": label, "y": [*finite[:-1:step], *finite[-1:]]}] if finite else []
    if not any(len(line["y"]) > 1 for line in shown):
        return None
    ends = ", ".join(f"{line['label']} {form.format(line['y'][-1][1])}" for line in shown)
    name, title, alt = names
    return Drawing(name, title, f"{alt}; at the end {ends}.", {"lines": shown, **axes}, draw_curves)


def _summary(lines: Lines) -> Lines:
    """The mean, the lowest and the highest of these lines wherever one of them has a point."""
    values = defaultdict[float, list[float]](list)
    for x, y in chain.from_iterable(lines.values()):
        values[x].append(y)
    parts: dict[str, Callable[[list[float]], float]]
    parts = {f"mean of {len(lines)} seeds": fmean, "lowest": min, "highest": max}
    return {label: [(x, part(found)) for x, found in sorted(values.items())] for label, part in parts.items()}


def draw_curves(data: Mapping[str, Any]) -> Figure:
    figure, axes = canvas()
    for number, line in enumerate(data["lines"]):
        x, y = zip(*line["y"], strict=True)
        own = look(number) | ({} if len(x) <= MOST_MARKERS else {"marker": None})
        axes.plot(x, y, **own, linewidth=1.4, label=line["label"])
    return finish(figure, axes, data["x"], data["y"])


def rank_growth(variant: Variant) -> Drawing | None:
    """The rank of each layer's basis relative to its capacity, after each task."""
    layers: list[dict[str, Any]] = []
    for layer, added in variant.ranks.items():
        if added.size and (capacity := variant.capacities.get(layer)):
            shares = (100 * added.mean(axis=0).cumsum() / capacity).tolist()
            layers.append({"layer": layer, "capacity": capacity, "share": shares})
    if not layers:
        return None
    ends = ", ".join(f"{each['layer']} {each['share'][-1]:.0f} % of {each['capacity']}" for each in layers)
    title = f"{benchmark_title(variant.benchmark)}: how full the memory of {method_title(variant.method)} gets"
    alt = f"Share of each layer's input space in the memory after each task; after the last: {ends}."
    return Drawing(f"ranks-{variant.slug}", title, alt, {"layers": layers}, draw_rank_growth)


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
        tasks, label = range(1, len(layer["share"]) + 1), f"{layer['layer']} (n = {layer['capacity']})"
        axes.plot(tasks, layer["share"], **look(number), label=label)
    axes.set_ylim(0, 104)
    axes.axhline(100, color=INK, **REFERENCE)
    return finish(figure, axes, "tasks learnt", "rank k, % of capacity n")
