"""Figures of a sweep over ε: drift of old activations by layer, and ACC and BWT (the paper's interference figures)."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from remnant.experiments.runs import DriftHistogram

from ..names import slug
from ..variants import Collection, Variant, flatten
from .drawing import COLOURS, DASHES, INK, Drawing, canvas, finish

Sweep = Sequence[tuple[float, Variant]]  # by ε

EPSILON = ("threshold", "threshold.start", "threshold.value")  # the settings that may hold ε, or ε of the first task
REACH = 3  # the drawn range, in root mean squares of the widest histogram


def sweep_drawings(collection: Collection) -> list[Drawing]:
    """For each sweep ACC and BWT against ε, then histograms for each layer whose drift was recorded."""
    sweeps: dict[str, list[tuple[float, Variant]]] = {}
    for variant in collection.variants:
        settings = dict(flatten(variant.settings))
        epsilons = [settings.pop(key) for key in EPSILON if key in settings]
        if variant.runs and epsilons:
            with suppress(ValueError):  # another kind of threshold
                sweeps.setdefault(f"{variant.title} {settings}", []).append((float(epsilons[0]), variant))
    drawings = []
    for sweep in sweeps.values():
        if len(sweep) > 1:
            sweep.sort(key=lambda pair: pair[0])
            layers = dict.fromkeys(layer for _, variant in sweep for run in variant.runs for layer in run.drift)
            drawings += [_effect(sweep), *(_interference(sweep, layer) for layer in layers)]
    return drawings


def _effect(sweep: Sweep) -> Drawing:
    points = [
        {"eps": epsilon, "acc": v.acc.mean, "acc_sd": v.acc.sd, "bwt": v.bwt_points.mean, "bwt_sd": v.bwt_points.sd}
        for epsilon, v in sweep
    ]
    words = ", ".join(f"ε {epsilon:g}: ACC {v.acc.mean or 0:.2f} %" for epsilon, v in sweep)
    one_seed = [f"{epsilon:g}" for epsilon, v in sweep if len(v.runs) == 1]  # these have no error bar
    where = "each ε" if len(one_seed) == len(sweep) else f"ε = {', '.join(one_seed)}"
    remark = f"One seed at {where}." if one_seed else ""
    name, title = f"threshold-{sweep[0][1].slug}", sweep[0][1].title
    caption, alt = f"{title}: ACC and BWT against ε", f"{title}, ACC by ε: {words}."
    return Drawing(name, caption, alt, {"points": points}, draw_effect, remark)


def draw_effect(data: Mapping[str, Any]) -> Figure:
    figure, (upper, lower) = canvas(nrows=2, sharex=True)
    for axes, name, label, number in ((upper, "acc", "ACC, %", 0), (lower, "bwt", "BWT, points", 1)):
        if points := [point for point in data["points"] if point[name] is not None]:
            x, y, sd = ([point[key] or 0.0 for point in points] for key in ("eps", name, f"{name}_sd"))
            axes.errorbar(x, y, yerr=sd, color=COLOURS[number], marker="os"[number], capsize=3, ecolor=INK)
        axes.set_ylabel(label)
    epsilons = [point["eps"] for point in data["points"]]
    lower.set_xticks(epsilons, [f"{value:g}" for value in epsilons])
    lower.set_xlabel("threshold ε of the first task")
    return figure


def _interference(sweep: Sweep, layer: str) -> Drawing:
    lines: list[dict[str, Any]] = []
    for epsilon, variant in sweep:
        if recorded := [run.drift[layer] for run in variant.runs if layer in run.drift]:
            lines.append({"eps": epsilon, **_mean_density(recorded)})
    words = ", ".join(f"ε {line['eps']:g}: {_root_mean_square(line):.2g}" for line in lines)
    first = sweep[0][1]
    names = f"interference-{first.slug}-{slug(layer)}", f"{first.title}: interference activation in {layer}"
    alt = (
        f"Histograms of the interference activation of task 1 in layer {layer}; root mean square by threshold: {words}."
    )
    return Drawing(*names, alt, {"lines": lines}, draw_histograms)


def _mean_density(histograms: Sequence[DriftHistogram]) -> dict[str, list[float]]:
    """Adds the histograms of all seeds in the widest one's bins. Runs write bins that fit; others are left out."""
    widest = np.array(max(histograms, key=lambda histogram: histogram.edges[-1] - histogram.edges[0]).edges)
    counts = np.zeros(len(widest) - 1)
    for histogram in histograms:
        edges = np.array(histogram.edges)
        inside = widest[(edges[0] < widest) & (widest < edges[-1])]
        # Every bin must lie within one of the widest's bins.
        if widest[0] <= edges[0] and edges[-1] <= widest[-1] and np.isin(inside, edges).all():
            counts += np.histogram((edges[:-1] + edges[1:]) / 2, widest, weights=histogram.counts)[0]
    return {"edges": widest.tolist(), "density": (counts / (counts.sum() or 1.0) / np.diff(widest)).tolist()}


def _root_mean_square(line: Mapping[str, Any]) -> float:
    bins = zip(line["density"], pairwise(line["edges"]), strict=True)
    return float(sum(density * (b - a) * ((a + b) / 2) ** 2 for density, (a, b) in bins) ** 0.5)


def draw_histograms(data: Mapping[str, Any]) -> Figure:
    figure, axes = canvas()
    for number, line in enumerate(data["lines"]):
        own: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}
        axes.stairs(line["density"], line["edges"], **own, linewidth=1.6, label=f"ε = {line['eps']:g}")
    # A few values are far out, and would leave no room for the others.
    if reach := REACH * max((_root_mean_square(line) for line in data["lines"]), default=0.0):
        axes.set_xlim(-reach, reach)
    # A fixed number of ticks, so that the layout has room for the last.
    return finish(figure, axes, "interference activation ΔW·x of task 1", "density", ticks=6)
