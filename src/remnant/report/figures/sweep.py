"""Figures of a sweep over ε: drift of old activations by layer, and ACC and BWT (the paper's interference figures)."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from remnant.experiments.runs import DriftHistogram

from ..names import slug
from ..variants import Collection, Variant
from .drawing import COLOURS, DASHES, INK, Drawing, canvas, finish

REACH = 3  # the drawn range, in root mean squares of the widest histogram


def sweep_drawings(collection: Collection) -> list[Drawing]:
    """For each sweep ACC and BWT against ε, then histograms for each layer whose drift was recorded."""
    groups: dict[tuple[str, str, str], list[Variant]] = {}
    for variant in collection.variants:
        if variant.runs and variant.threshold is not None:
            groups.setdefault((variant.benchmark, variant.method, variant.settings_but_threshold), []).append(variant)
    drawings = []
    for group in groups.values():
        if len(group) > 1:
            sweep = sorted(group, key=lambda v: v.threshold or 0.0)
            layers = dict.fromkeys(layer for variant in sweep for run in variant.runs for layer in run.drift)
            drawings += [_effect(sweep), *(_interference(sweep, layer) for layer in layers)]
    return drawings


def _effect(sweep: Sequence[Variant]) -> Drawing:
    def percent(fraction: float | None) -> float | None:
        return None if fraction is None else 100 * fraction

    points = []
    for v in sweep:
        bwt = {"bwt": percent(v.bwt.mean), "bwt_sd": percent(v.bwt.sd)}
        points.append({"eps": v.threshold, "acc": v.acc.mean, "acc_sd": v.acc.sd, **bwt})
    words = ", ".join(f"ε {v.threshold:g}: ACC {v.acc.mean or 0:.2f} %" for v in sweep)
    one_seed = [f"{v.threshold:g}" for v in sweep if len(v.runs) == 1]  # these have no error bar
    where = "each ε" if len(one_seed) == len(sweep) else f"ε = {', '.join(one_seed)}"
    remark = f"One seed at {where}." if one_seed else ""
    name, title = f"threshold-{sweep[0].slug}", sweep[0].title
    caption, alt = f"{title}: ACC and BWT against ε", f"{title}, ACC by ε: {words}."
    return Drawing(name, caption, alt, {"points": points}, draw_effect, remark)


def draw_effect(data: Mapping[str, Any]) -> Figure:
    figure, (upper, lower) = canvas(nrows=2, sharex=True)
    eps = [point["eps"] for point in data["points"]]
    for axes, name, label, number in ((upper, "acc", "ACC, %", 0), (lower, "bwt", "BWT, points", 1)):
        points = [point for point in data["points"] if point[name] is not None]
        if points:
            x, mean = [point["eps"] for point in points], [point[name] for point in points]
            sd = [point[f"{name}_sd"] or 0.0 for point in points]
            axes.errorbar(x, mean, yerr=sd, color=COLOURS[number], marker="os"[number], capsize=3, ecolor=INK)
        axes.set_ylabel(label)
    lower.set_xticks(eps, [f"{value:g}" for value in eps])
    lower.set_xlabel("threshold ε of the first task")
    return figure


def _interference(sweep: Sequence[Variant], layer: str) -> Drawing:
    lines: list[dict[str, Any]] = []
    for variant in sweep:
        if recorded := [run.drift[layer] for run in variant.runs if layer in run.drift]:
            lines.append({"eps": variant.threshold, **_mean_density(recorded)})
    words = ", ".join(f"ε {line['eps']:g}: {_root_mean_square(line):.2g}" for line in lines)
    names = f"interference-{sweep[0].slug}-{slug(layer)}", f"{sweep[0].title}: interference activation in {layer}"
    what = f"Histograms of the interference activation of task 1 in layer {layer}"
    return Drawing(*names, f"{what}; root mean square by threshold: {words}.", {"lines": lines}, draw_histograms)


def _mean_density(histograms: Sequence[DriftHistogram]) -> dict[str, list[float]]:
    """Adds the histograms of all seeds in the widest one's bins. Runs write bins that fit; others are left out."""
    edges = max(histograms, key=lambda histogram: histogram.edges[-1] - histogram.edges[0]).edges
    counts = np.zeros(len(edges) - 1)
    for histogram in histograms:
        if _fits(histogram.edges, edges):
            middles = [(low + high) / 2 for low, high in pairwise(histogram.edges)]
            counts += np.histogram(middles, edges, weights=histogram.counts)[0]
    return {"edges": list(edges), "density": (counts / (counts.sum() or 1.0) / np.diff(edges)).tolist()}


def _fits(fine: Sequence[float], coarse: Sequence[float]) -> bool:
    """Whether every bin of `fine` lies within one bin of `coarse`."""
    inside = {edge for edge in coarse if fine[0] < edge < fine[-1]}
    return coarse[0] <= fine[0] and fine[-1] <= coarse[-1] and inside <= set(fine)


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
