"""ε from loose to tight: how far old activations drift in each layer, and what that does to ACC and BWT (the paper's
figures of interference activations)."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from remnant.experiments.runs.paths import folder_name

from ..names import benchmark_title, method_title
from ..records import Histogram
from ..variants import Collection, Variant
from .drawing import Drawing
from .style import COLOURS, DASHES, INK, canvas, legend_below

REACH = 3  # how many root mean squares of the widest histogram are drawn


def sweeps(collection: Collection) -> list[list[Variant]]:
    """Variants that differ in ε and in nothing else, by rising ε; at least two of them."""
    groups: dict[tuple[str, str, str], list[Variant]] = {}
    for variant in collection.variants:
        if variant.runs and variant.threshold is not None:
            groups.setdefault((variant.benchmark, variant.method, variant.but_for_threshold), []).append(variant)
    return [sorted(group, key=lambda v: v.threshold or 0.0) for group in groups.values() if len(group) > 1]


def sweep_drawings(sweep: Sequence[Variant]) -> list[Drawing]:
    """ACC and BWT against ε, then one figure of histograms for each layer whose drift was recorded."""
    first = sweep[0]
    mark = f"{folder_name(first.benchmark)}-{folder_name(first.method)}-{first.digest}"
    title = f"{method_title(first.method)} on {benchmark_title(first.benchmark)}"
    return [_effect(sweep, mark, title), *(_layer(sweep, layer, mark, title) for layer in _layers(sweep))]


def _effect(sweep: Sequence[Variant], mark: str, title: str) -> Drawing:
    points = [
        {
            "eps": v.threshold,
            "acc": v.acc.mean,
            "acc_sd": v.acc.sd,
            "bwt": _points(v.bwt.mean),
            "bwt_sd": _points(v.bwt.sd),
        }
        for v in sweep
    ]
    words = ", ".join(f"ε {v.threshold:g}: ACC {v.acc.mean or 0:.2f} %" for v in sweep)
    return Drawing(
        f"threshold-{mark}",
        f"{title}: ACC and BWT against ε",
        f"{title}, ACC by ε: {words}.",
        {"points": points},
        effect,
        _alone(sweep),
    )


def _alone(sweep: Sequence[Variant]) -> str:
    """Which points are of one seed and have no bar for that reason."""
    alone = [f"{v.threshold:g}" for v in sweep if len(v.runs) == 1]
    if not alone:
        return ""
    return "One seed at each ε." if len(alone) == len(sweep) else f"One seed at ε = {', '.join(alone)}."


def _points(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction


def _layers(sweep: Sequence[Variant]) -> list[str]:
    return list(dict.fromkeys(layer for variant in sweep for run in variant.runs for layer in run.drift))


def _layer(sweep: Sequence[Variant], layer: str, mark: str, title: str) -> Drawing:
    lines = []
    for variant in sweep:
        histogram = _summed([run.drift[layer] for run in variant.runs if layer in run.drift])
        if histogram is not None:
            lines.append({"eps": variant.threshold, "edges": list(histogram.edges), "density": _density(histogram)})
    words = ", ".join(f"ε {line['eps']:g}: {_deviation(line):.2g}" for line in lines)
    return Drawing(
        f"interference-{mark}-{folder_name(layer)}",
        f"{title}: interference activation in {layer}",
        f"Histograms of the interference activation of task 1 in layer {layer}; root mean square by threshold: {words}.",
        {"lines": lines},
        histograms,
    )


def _summed(found: Sequence[Histogram]) -> Histogram | None:
    """Over the seeds whose bins each lie within one of the widest's; as runs write them (`memory.histogram`), all do."""
    if not found:
        return None
    widest = max(found, key=lambda histogram: histogram.edges[-1] - histogram.edges[0])
    counts = [0.0] * len(widest.counts)
    for histogram in found:
        if _within(histogram.edges, widest.edges):
            for (low, high), count in zip(pairwise(histogram.edges), histogram.counts, strict=True):
                counts[bisect(widest.edges, (low + high) / 2) - 1] += count
    return Histogram(widest.edges, tuple(counts))


def _within(fine: Sequence[float], coarse: Sequence[float]) -> bool:
    inside = {edge for edge in coarse if fine[0] < edge < fine[-1]}
    return coarse[0] <= fine[0] and fine[-1] <= coarse[-1] and inside <= set(fine)


def _density(histogram: Histogram) -> list[float]:
    total = sum(histogram.counts) or 1.0
    widths = [high - low for low, high in pairwise(histogram.edges)]
    return [count / total / width for count, width in zip(histogram.counts, widths, strict=True)]


def _deviation(line: Mapping[str, Any]) -> float:
    bins = list(pairwise(line["edges"]))
    return float(sum(d * (b - a) * ((a + b) / 2) ** 2 for d, (a, b) in zip(line["density"], bins, strict=True)) ** 0.5)


def histograms(data: Mapping[str, Any]) -> Figure:
    figure, axes = canvas()
    for number, line in enumerate(data["lines"]):
        axes.stairs(
            line["density"],
            line["edges"],
            color=COLOURS[number % len(COLOURS)],
            linestyle=DASHES[number % len(DASHES)],  # there are no markers to tell them by
            linewidth=1.6,
            label=f"ε = {line['eps']:g}",
        )
    # A few values lie far out, and would leave the rest no room.
    if reach := REACH * max((_deviation(line) for line in data["lines"]), default=0.0):
        axes.set_xlim(-reach, reach)
    axes.xaxis.set_major_locator(MaxNLocator(6))  # the same ticks at any width: the layout has room for the last one
    axes.set_xlabel("interference activation ΔW·x of task 1")
    axes.set_ylabel("density")
    legend_below(figure, axes)
    return figure


def effect(data: Mapping[str, Any]) -> Figure:
    figure = Figure(figsize=(4.8, 3.5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    eps = [point["eps"] for point in data["points"]]
    for axes, name, label, number in ((upper, "acc", "ACC, %", 0), (lower, "bwt", "BWT, points", 1)):
        known = [
            (e, p[name], p[f"{name}_sd"] or 0.0)
            for e, p in zip(eps, data["points"], strict=True)
            if p[name] is not None
        ]
        if known:
            at, mean, sd = (list(column) for column in zip(*known, strict=True))
            axes.errorbar(at, mean, yerr=sd, color=COLOURS[number], marker="os"[number], capsize=3, ecolor=INK)
        axes.set_ylabel(label)
    lower.set_xticks(eps, [f"{value:g}" for value in eps])
    lower.set_xlabel("threshold ε of the first task")
    return figure
