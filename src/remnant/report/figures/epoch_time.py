"""Training time of an epoch, relative to the slowest method on the same device (the paper's figure for permuted MNIST)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from remnant.experiments.place import folder_name

from ..names import benchmark_title, ordered_methods
from ..reading import Run
from ..spread import Spread
from ..variants import Collection, Variant
from .bars import bars
from .drawing import Drawing
from .labels import footnote, label


def epoch_times(collection: Collection, benchmark: str) -> list[Drawing]:
    """One figure a device: times of two devices are not comparable."""
    per_device: dict[str, dict[str, tuple[Variant, float]]] = {}
    for variant in collection.mains(benchmark):
        seconds = epoch_seconds(variant).mean
        if seconds and len(variant.devices) == 1:
            per_device.setdefault(variant.devices[0], {})[variant.method] = (variant, seconds)
    return [_drawing(benchmark, device, times) for device, times in sorted(per_device.items()) if len(times) > 1]


def epoch_seconds(variant: Variant) -> Spread:
    """Training seconds by epochs done: those of metrics.jsonl, or, where no stopping rule cut them short, all of them."""
    return Spread.of([_seconds(run) for run in variant.runs])


def _seconds(run: Run) -> float | None:
    epochs = len(run.metrics) or _planned(run)
    train = run.measured.seconds.get("train") if run.measured else None
    return train / epochs if epochs and train else None


def _planned(run: Run) -> int:
    training = run.settings.get("training")
    if not isinstance(training, dict) or "patience" in training or run.matrix is None:
        return 0
    # Learnt together, all tasks are one: every row of R but the last is empty.
    together = run.matrix.tasks > 1 and run.matrix[0, 0] != run.matrix[0, 0]
    return int(training.get("epochs", 0)) * (1 if together else run.matrix.tasks)


def _drawing(benchmark: str, device: str, times: Mapping[str, tuple[Variant, float]]) -> Drawing:
    slowest = max(seconds for _, seconds in times.values())
    rows = [
        {"method": method, "title": label(variant), "value": seconds / slowest, "seconds": seconds}
        for method in ordered_methods(times)
        for variant, seconds in [times[method]]
    ]
    words = ", ".join(f"{row['title']} {row['value']:.2f}" for row in rows)
    return Drawing(
        f"epoch-time-{folder_name(benchmark)}-{folder_name(device)}",
        f"{benchmark_title(benchmark)}: time of an epoch on {device}",
        f"Training time of an epoch on {device} relative to the slowest method, {slowest:.2f} s: {words}.",
        {"rows": rows},
        draw,
        footnote(variant for variant, _ in times.values()),
    )


def draw(data: Mapping[str, Any]) -> Figure:
    return bars(data["rows"], "time of an epoch, slowest = 1", reference=1.0)
