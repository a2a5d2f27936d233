"""Figures that compare all methods on a benchmark: task 1 over the sequence, and learning against forgetting."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from remnant.evaluation import Spread

from ..names import benchmark_title, slug
from ..variants import Collection, Variant
from .drawing import Drawing
from .style import FAINT, INK, REFERENCE, canvas, footnote, label_with_seeds, legend_below, method_look


def first_task(collection: Collection, benchmark: str) -> Drawing | None:
    """The accuracy on task 1 after each task (a figure of the appendix)."""
    variants = collection.mains(benchmark).values()
    lines = [line for line in map(_line, variants) if any(mean is not None for mean in line["mean"])]
    if not lines:
        return None
    last = [next(mean for mean in reversed(line["mean"]) if mean is not None) for line in lines]
    ends = ", ".join(f"{line['title']} {end:.1f} %" for line, end in zip(lines, last, strict=True))
    title = benchmark_title(benchmark)
    return Drawing(
        f"first-task-{slug(benchmark)}",
        f"{title}: task 1 as later tasks are learnt",
        f"Accuracy on task 1 after each further task of {title}. At the end: {ends}.",
        {"lines": lines},
        draw_first_task,
        footnote(variants),
    )


def _line(variant: Variant) -> dict[str, Any]:
    columns = [run.matrix.values[:, 0].tolist() for run in variant.runs if run.matrix is not None]
    spreads = [Spread.of(after, 100) for after in zip(*columns, strict=False)]
    means, deviations = [spread.mean for spread in spreads], [spread.sd for spread in spreads]
    return {"method": variant.method, "title": label_with_seeds(variant), "mean": means, "sd": deviations}


def draw_first_task(data: Mapping[str, Any]) -> Figure:
    figure, axes = canvas()
    for line in data["lines"]:
        look = method_look(line["method"])
        known = [t for t, mean in enumerate(line["mean"]) if mean is not None]
        tasks, mean = [t + 1 for t in known], [line["mean"][t] for t in known]
        axes.plot(tasks, mean, color=look.colour, marker=look.marker, linestyle=look.dash, label=line["title"])
        low, high = ([min(max(line["mean"][t] + s * (line["sd"][t] or 0), 0), 100) for t in known] for s in (-1, 1))
        axes.fill_between(tasks, low, high, color=look.colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="tasks learnt", ylabel="accuracy on task 1, %")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_below(figure, axes)
    return figure


def trade_off(collection: Collection, benchmark: str) -> Drawing | None:
    """Backward transfer against learning accuracy: stability against plasticity."""
    variants = collection.mains(benchmark)
    points = []
    for method, variant in variants.items():
        la, bwt = variant.learning_accuracy, variant.bwt
        if la.mean is not None and bwt.mean is not None:
            point = {"method": method, "title": label_with_seeds(variant), "la": la.mean, "la_sd": la.sd or 0.0}
            points.append({**point, "bwt": 100 * bwt.mean, "bwt_sd": 100 * (bwt.sd or 0.0)})
    if not points:
        return None
    words = "; ".join(f"{p['title']} learns {p['la']:.1f} % and moves by {p['bwt']:+.1f} points" for p in points)
    title = benchmark_title(benchmark)
    return Drawing(
        f"trade-off-{slug(benchmark)}",
        f"{title}: learning against keeping",
        f"Learning accuracy and backward transfer of each method on {title}: {words}.",
        {"points": points},
        draw_trade_off,
        footnote(variants.values()),
    )


def draw_trade_off(data: Mapping[str, Any]) -> Figure:
    figure, axes = canvas()
    edge = {"markeredgecolor": INK, "markersize": 8, "markeredgewidth": 0.7, "capsize": 3, "linestyle": "none"}
    for point in data["points"]:
        look = method_look(point["method"])
        bars = {"xerr": point["la_sd"], "yerr": point["bwt_sd"], "fmt": look.marker, "color": look.colour}
        axes.errorbar(point["la"], point["bwt"], **bars, **edge, label=point["title"])
    axes.axhline(0, color=FAINT, **REFERENCE)
    axes.margins(0.15)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set(xlabel="learning accuracy, % (right: learns more)", ylabel="BWT, points (up: forgets less)")
    legend_below(figure, axes)
    return figure
