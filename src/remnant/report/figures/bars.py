"""Bar charts with a bar for each method: the memory that it keeps, and the time of an epoch."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from remnant.evaluation import Spread
from remnant.experiments.settings import resolve

from ..names import benchmark_title, ordered_methods, read_toml, short_title, slug
from ..ranks import gpm_max_bytes
from ..records import RunRecord
from ..tables import has_recipe
from ..variants import Collection, Variant
from .drawing import Drawing
from .style import FAINT, INK, REFERENCE, canvas, footnote, label, method_look

PAPER_MEMORY: dict[str, float] = read_toml("paper.toml")["memory"]
LARGEST_RATIO = 30.0  # of two bars on a linear axis; beyond it, the axis is logarithmic
TIMED_ALIKE = "Timed one after another in one process, all in the same way."
TIMED_IN_RUNS = (
    "Wall-clock time of runs that may have shared the device, some with kernels written for one method: no comparison of "
    "methods. remnant reproduce table2 makes one."
)


def memory(collection: Collection, benchmark: str) -> Drawing | None:
    """The bytes that each method keeps between tasks, relative to GPM_max (the paper's figure of memory)."""
    variants = collection.mains(benchmark)
    rows = []
    for method, variant in variants.items():
        largest, kept = gpm_max_bytes(variant), variant.memory_bytes.mean
        if largest and kept is not None:
            rows.append({"method": method, "title": label(variant), "value": kept / largest, "bytes": kept})
    if not any(row["value"] for row in rows):
        return None
    paper = f" The paper's GPM: {PAPER_MEMORY[benchmark]:.2f}." if benchmark in PAPER_MEMORY else ""
    title = benchmark_title(benchmark)
    return Drawing(
        f"memory-{slug(benchmark)}",
        f"{title}: memory, GPM_max = 1",
        f"Memory kept between tasks relative to GPM_max on {title}: {_values(rows)}.{paper}",
        {"rows": rows, "paper": PAPER_MEMORY.get(benchmark)},
        draw_memory,
        footnote(variants.values()),
    )


def draw_memory(data: Mapping[str, Any]) -> Figure:
    return draw_bars(
        data["rows"], "memory relative to GPM_max", {} if data["paper"] is None else {"gpm": data["paper"]}
    )


def epoch_times(collection: Collection, benchmark: str) -> list[Drawing]:
    """The time of an epoch relative to the slowest method: as `reproduce table2` timed it, else by device from runs."""
    timed = collection.reading.times.get(benchmark)
    if timed:
        epochs = {
            method: (short_title(method), timing.epoch)
            for method, timing in timed.methods.items()
            if has_recipe(benchmark, method) and timing.digest == resolve(benchmark, method).digest
        }
        if len(epochs) > 1:
            return [_epoch_times(benchmark, timed.device, epochs, TIMED_ALIKE)]
    by_device: dict[str, list[Variant]] = {}
    for variant in collection.mains(benchmark).values():
        if _epoch_seconds(variant) and len(variant.devices) == 1:
            by_device.setdefault(variant.devices[0], []).append(variant)
    drawings = []
    for device, variants in sorted(by_device.items()):
        if len(variants) > 1:
            epochs = {v.method: (label(v), _epoch_seconds(v) or 0.0) for v in variants}
            drawings.append(_epoch_times(benchmark, device, epochs, f"{footnote(variants)} {TIMED_IN_RUNS}".strip()))
    return drawings


def _epoch_times(benchmark: str, device: str, epochs: Mapping[str, tuple[str, float]], remark: str) -> Drawing:
    slowest = max(seconds for _, seconds in epochs.values())
    rows = [
        {
            "method": method,
            "title": epochs[method][0],
            "value": epochs[method][1] / slowest,
            "seconds": epochs[method][1],
        }
        for method in ordered_methods(epochs)
    ]
    return Drawing(
        f"epoch-time-{slug(benchmark, device)}",
        f"{benchmark_title(benchmark)}: time of an epoch on {device}",
        f"Training time of an epoch on {device} relative to the slowest method, {slowest:.2f} s: {_values(rows)}.",
        {"rows": rows},
        draw_epoch_times,
        remark,
    )


def draw_epoch_times(data: Mapping[str, Any]) -> Figure:
    return draw_bars(data["rows"], "time of an epoch, slowest = 1", {})


def _epoch_seconds(variant: Variant) -> float | None:
    return Spread.of([_seconds_of(run) for run in variant.runs]).mean


def _seconds_of(run: RunRecord) -> float | None:
    """Training seconds per epoch: of the recorded epochs, or of all if no stopping rule could cut them short."""
    epochs = len(run.metrics)
    training = run.settings.get("training", {})
    if not epochs and "patience" not in training and run.matrix is not None:
        # Joint training learns all tasks as one, and only the last row of R is measured.
        joint = run.matrix.tasks > 1 and run.matrix[0, 0] != run.matrix[0, 0]
        epochs = int(training.get("epochs", 0)) * (1 if joint else run.matrix.tasks)
    train = run.result.seconds.get("train") if run.result else None
    return train / epochs if epochs and train else None


def _values(rows: list[dict[str, Any]]) -> str:
    return ", ".join(f"{row['title']} {row['value']:.2f}" for row in rows)


def draw_bars(rows: list[Mapping[str, Any]], title: str, paper: Mapping[str, float]) -> Figure:
    """Draws a bar for each row, with its value; `paper` gives the paper's values by method."""
    figure, axes = canvas(height=0.9 + 0.36 * len(rows))
    for y, row in enumerate(rows):
        axes.barh(y, row["value"], height=0.62, color=method_look(row["method"]).colour, edgecolor=INK, linewidth=0.6)
        _annotate(axes, y, row["value"], paper.get(row["method"]))
    axes.axvline(1.0, color=FAINT, **REFERENCE)
    axes.set_yticks(range(len(rows)), [row["title"] for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    values = [row["value"] for row in rows]
    positive = [value for value in values if value > 0]
    if max(positive) / min(positive) > LARGEST_RATIO:
        axes.set_xscale("log")
        axes.set_xlim(min(positive) / 3, max([*positive, 1.0]) * 8)
        axes.xaxis.set_major_locator(LogLocator(numticks=6))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xlim(0, max([*values, *paper.values(), 1.0]) * 1.22)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"{title} (◇ paper)" if paper else title)
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
    else:  # at the axis: a logarithmic one has no zero
        axes.annotate("keeps nothing", (0, y), xycoords=("axes fraction", "data"), **text)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"
