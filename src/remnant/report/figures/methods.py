"""Figures that compare all methods on a benchmark: task 1 over time, learning against forgetting, memory, epoch times."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from remnant.evaluation import Spread
from remnant.experiments.settings import resolve

from ..names import TEXTS, benchmark_title, has_recipe, in_order, paper_table, read_toml, short_title, slug
from ..records import RunRecord
from ..variants import Collection, Variant
from .drawing import FAINT, INK, REFERENCE, Drawing, canvas, finish, look

PAPER_MEMORY: dict[str, float] = read_toml("paper.toml")["memory"]
TIMED_ALIKE, TIMED_IN_RUNS = TEXTS["times"]["alike"], TEXTS["times"]["in_runs"]
READABLE = 12  # lines in one figure
LARGEST_RATIO = 30.0  # of two bars on a linear axis; beyond it, the axis is logarithmic


def look_number(method: str) -> int:
    """The number of a method's look, which is the same in every figure."""
    order = list(dict.fromkeys([*TEXTS["looks"]["order"], *TEXTS["methods"]]))
    return order.index(method) if method in order else len(order) + sum(method.encode()) % (77 - len(order))


def method_look(method: str) -> dict[str, Any]:
    return look(look_number(method))


def _entry(variant: Variant, *, deviates: bool = True) -> dict[str, Any]:
    """The method and its title in a figure, with a star if its settings are not the recipe's."""
    star = "" if variant.as_in_recipe else " *"
    # Without this note, one seed would look like seeds that agree.
    note = " (one seed)" if deviates and len(variant.runs) == 1 else ""
    return {"method": variant.method, "title": f"{short_title(variant.method)}{star}{note}"}


def _footnote(variants: Iterable[Variant]) -> str:
    """Explains the stars; empty if there are none."""
    others: dict[str, list[str]] = {}
    for variant in variants:
        if not variant.as_in_recipe:
            others.setdefault(variant.label, []).append(short_title(variant.method))
    words = "; ".join(f"{', '.join(methods)}: {label}" for label, methods in others.items())
    return f"* Not the recipe's settings. {words}." if others else ""


def families(collection: Collection, benchmark: str) -> Iterator[tuple[str, list[Variant]]]:
    """Yields the name of each figure and its methods. If there are many, GPM's successors share a second figure with GPM."""
    mains = collection.mains(benchmark)
    successors = {row.method for row in paper_table("successors").rows} if len(mains) > READABLE else set()
    yield slug(benchmark), [v for v in mains.values() if v.method == "gpm" or v.method not in successors]
    if not (successors - {"gpm"}).isdisjoint(mains):
        yield f"successors-{slug(benchmark)}", [v for v in mains.values() if v.method in successors]


def first_task(name: str, variants: Sequence[Variant]) -> Drawing | None:
    """The accuracy on task 1 after each task (a figure of the appendix)."""
    lines = []
    for variant in variants:
        columns = [run.matrix.values[:, 0].tolist() for run in variant.runs if run.matrix is not None]
        spreads = [Spread.of(after, 100) for after in zip(*columns, strict=False)]
        if any(spread.mean is not None for spread in spreads):
            lines.append({**_entry(variant), "mean": [s.mean for s in spreads], "sd": [s.sd for s in spreads]})
    ends = ", ".join(f"{line['title']} {[m for m in line['mean'] if m is not None][-1]:.1f} %" for line in lines)
    if not lines:
        return None
    title = benchmark_title(variants[0].benchmark)
    alt = f"Accuracy on task 1 after each further task of {title}. At the end: {ends}."
    names = f"first-task-{name}", f"{title}: task 1 as later tasks are learnt", alt
    return Drawing(*names, {"lines": lines}, draw_first_task, _footnote(variants))


def draw_first_task(data: Mapping[str, Any]) -> Figure:
    figure, axes = canvas()
    for line in data["lines"]:
        own = method_look(line["method"])
        mean, sd = (np.array(line[part], float) for part in ("mean", "sd"))  # None becomes NaN
        tasks = np.flatnonzero(np.isfinite(mean))
        mean, sd = mean[tasks], np.nan_to_num(sd[tasks])
        axes.plot(tasks + 1, mean, **own, label=line["title"])
        low, high = np.clip([mean - sd, mean + sd], 0, 100)
        axes.fill_between(tasks + 1, low, high, color=own["color"], alpha=0.15, linewidth=0)
    return finish(figure, axes, "tasks learnt", "accuracy on task 1, %")


def trade_off(name: str, variants: Sequence[Variant]) -> Drawing | None:
    """Backward transfer against learning accuracy: stability against plasticity."""
    points = []
    for variant in variants:
        la, bwt = variant.learning_accuracy, variant.bwt_points
        if la.mean is not None and bwt.mean is not None:
            spreads = {"la": la.mean, "la_sd": la.sd or 0.0, "bwt": bwt.mean, "bwt_sd": bwt.sd or 0.0}
            points.append({**_entry(variant), **spreads})
    words = "; ".join(f"{p['title']} learns {p['la']:.1f} % and moves by {p['bwt']:+.1f} points" for p in points)
    if not points:
        return None
    title = benchmark_title(variants[0].benchmark)
    alt = f"Learning accuracy and backward transfer of each method on {title}: {words}."
    names = f"trade-off-{name}", f"{title}: learning against keeping", alt
    return Drawing(*names, {"points": points}, draw_trade_off, _footnote(variants))


def draw_trade_off(data: Mapping[str, Any]) -> Figure:
    figure, axes = canvas()
    edge = {"markeredgecolor": INK, "markersize": 8, "markeredgewidth": 0.7, "capsize": 3, "linestyle": "none"}
    for point in data["points"]:
        own = method_look(point["method"])
        bars = {"xerr": point["la_sd"], "yerr": point["bwt_sd"], "fmt": own["marker"], "color": own["color"]}
        axes.errorbar(point["la"], point["bwt"], **bars, **edge, label=point["title"])
    axes.axhline(0, color=FAINT, **REFERENCE)
    axes.margins(0.15)
    labels = "learning accuracy, % (right: learns more)", "BWT, points (up: forgets less)"
    return finish(figure, axes, *labels, ticks=5)


def memory(collection: Collection, benchmark: str) -> Drawing | None:
    """The bytes that each method keeps between tasks, relative to GPM_max (the paper's figure of memory)."""
    variants, title = collection.mains(benchmark).values(), benchmark_title(benchmark)
    rows = [
        {**_entry(v, deviates=False), "value": v.memory_bytes.mean / v.gpm_max_bytes, "bytes": v.memory_bytes.mean}
        for v in variants
        if v.gpm_max_bytes and v.memory_bytes.mean is not None
    ]
    paper = PAPER_MEMORY.get(benchmark)
    alt = f"Memory kept between tasks relative to GPM_max on {title}: {_values(rows)}."
    alt += f" The paper's GPM: {paper:.2f}." if paper else ""
    names = f"memory-{slug(benchmark)}", f"{title}: memory, GPM_max = 1", alt
    data = {"rows": rows, "paper": paper, "axis": "memory relative to GPM_max"}
    return Drawing(*names, data, draw_bars, _footnote(variants)) if any(row["value"] for row in rows) else None


def epoch_times(collection: Collection, benchmark: str) -> list[Drawing]:
    """The time of an epoch relative to the slowest method: as `reproduce table2` timed it, else by device from runs."""
    timings, device = collection.reading.times.get(benchmark, ({}, ""))
    rows: list[dict[str, Any]] = [
        {"method": method, "title": short_title(method), "seconds": timings[method].epoch}
        for method in in_order("methods", timings)
        if has_recipe(benchmark, method) and timings[method].digest == resolve(benchmark, method).digest
    ]
    if len(rows) > 1:
        return [_epoch_times(benchmark, device, rows, TIMED_ALIKE)]
    mains = collection.mains(benchmark)
    by_device: dict[str, list[dict[str, Any]]] = {}
    for variant in mains.values():
        seconds = Spread.of([_epoch_seconds(run) for run in variant.runs]).mean
        if seconds and len(variant.devices) == 1:
            row = {**_entry(variant, deviates=False), "seconds": seconds}
            by_device.setdefault(variant.devices[0], []).append(row)
    return [
        _epoch_times(
            benchmark, device, rows, f"{_footnote(mains[row['method']] for row in rows)} {TIMED_IN_RUNS}".strip()
        )
        for device, rows in sorted(by_device.items())
        if len(rows) > 1
    ]


def _epoch_seconds(run: RunRecord) -> float | None:
    """Training seconds per epoch: of the recorded epochs, or of all if no stopping rule could cut them short."""
    epochs = len(run.metrics)
    training = run.settings.get("training", {})
    if not epochs and "patience" not in training and run.matrix is not None:
        # Joint training learns all tasks as one, and only the last row of R is measured.
        joint = run.matrix.tasks > 1 and np.isnan(run.matrix[0, 0])
        epochs = int(training.get("epochs", 0)) * (1 if joint else run.matrix.tasks)
    train = run.result.seconds.get("train") if run.result else None
    return train / epochs if epochs and train else None


def _epoch_times(benchmark: str, device: str, rows: list[dict[str, Any]], remark: str) -> Drawing:
    slowest = max(row["seconds"] for row in rows)
    rows = [{**row, "value": row["seconds"] / slowest} for row in rows]
    names = f"epoch-time-{slug(benchmark, device)}", f"{benchmark_title(benchmark)}: time of an epoch on {device}"
    alt = f"Training time of an epoch on {device} relative to the slowest method, {slowest:.2f} s: {_values(rows)}."
    data = {"rows": rows, "paper": None, "axis": "time of an epoch, slowest = 1"}
    return Drawing(*names, alt, data, draw_bars, remark)


def _values(rows: list[dict[str, Any]]) -> str:
    return ", ".join(f"{row['title']} {row['value']:.2f}" for row in rows)


def draw_bars(data: Mapping[str, Any]) -> Figure:
    """Draws a bar for each row, with its value. The paper's value is for GPM."""
    rows, paper = data["rows"], data["paper"]
    figure, axes = canvas(height=0.9 + 0.36 * len(rows))
    for y, row in enumerate(rows):
        axes.barh(y, row["value"], height=0.62, color=method_look(row["method"])["color"], edgecolor=INK, linewidth=0.6)
        _annotate(axes, y, row["value"], paper if row["method"] == "gpm" else None)
    axes.axvline(1.0, color=FAINT, **REFERENCE)
    axes.set_yticks(range(len(rows)), [row["title"] for row in rows])
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlabel=data["axis"] + (" (◇ paper)" if paper else ""))
    positive = [row["value"] for row in rows if row["value"] > 0]
    if max(positive) / min(positive) > LARGEST_RATIO:
        axes.set(xscale="log", xlim=(min(positive) / 3, max([*positive, 1.0]) * 8))
        axes.xaxis.set_major_locator(LogLocator(numticks=6))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xlim(0, max([*positive, paper or 0.0, 1.0]) * 1.22)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    return figure


def _annotate(axes: Any, y: int, value: float, paper: float | None) -> None:
    """Writes the value beside its bar, and marks the paper's."""
    text: dict[str, Any] = {"textcoords": "offset points", "xytext": (4, 0), "va": "center", "fontsize": 9.5}
    if paper is not None:
        axes.plot(paper, y, marker="D", color="none", markeredgecolor=INK, markersize=7, linestyle="none")
    if paper is not None and paper > value:  # to the right of the mark, which it would cover
        axes.annotate(f"{_short(value)}, paper {_short(paper)}", (paper, y), **{**text, "xytext": (9, 0)})
    elif value:
        axes.annotate(_short(value), (value, y), **text)
    else:  # at the edge of the axes, because a logarithmic axis has no zero
        axes.annotate("keeps nothing", (0, y), xycoords=("axes fraction", "data"), **text)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"
