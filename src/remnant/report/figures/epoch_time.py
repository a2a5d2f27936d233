"""Training time of an epoch, relative to the slowest method on the same device (the paper's figure for permuted MNIST)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from remnant.experiments.runs.paths import folder_name
from remnant.experiments.settings.resolve import SettingsError, resolve

from ..names import benchmark_title, ordered_methods, short_title
from ..records import Run, Timed
from ..spread import Spread
from ..variants import Collection, Variant
from .bars import bars
from .drawing import Drawing
from .labels import footnote, label

EQUAL = "Timed one after another in one process, all in the same way."
UNEQUAL = (
    "Wall-clock time of runs that may have shared the device, some with kernels written for one method: no comparison of "
    "methods. remnant reproduce table2 makes one."
)


class Epoch(NamedTuple):
    title: str
    seconds: float


def epoch_times(collection: Collection, benchmark: str) -> list[Drawing]:
    """What was timed for it, where something was; otherwise what runs took, one figure a device."""
    timed = collection.reading.times.get(benchmark)
    if timed and len(epochs := _timed(benchmark, timed)) > 1:
        return [_drawing(benchmark, timed.device, epochs, EQUAL)]
    per_device: dict[str, dict[str, Variant]] = {}
    for variant in collection.mains(benchmark):
        if epoch_seconds(variant).mean and len(variant.devices) == 1:
            per_device.setdefault(variant.devices[0], {})[variant.method] = variant
    return [_of_runs(benchmark, device, found) for device, found in sorted(per_device.items()) if len(found) > 1]


def _timed(benchmark: str, timed: Timed) -> dict[str, Epoch]:
    """With the recipe's settings."""
    return {
        method: Epoch(short_title(method), timing.epoch)
        for method, timing in timed.methods.items()
        if timing.digest == _digest(benchmark, method)
    }


def _digest(benchmark: str, method: str) -> str:
    try:
        return resolve(benchmark, method).digest
    except SettingsError:
        return ""


def _of_runs(benchmark: str, device: str, found: Mapping[str, Variant]) -> Drawing:
    epochs = {method: Epoch(label(v), epoch_seconds(v).mean or 0.0) for method, v in found.items()}
    return _drawing(benchmark, device, epochs, f"{footnote(found.values())} {UNEQUAL}".strip())


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


def _drawing(benchmark: str, device: str, epochs: Mapping[str, Epoch], remark: str) -> Drawing:
    slowest = max(epoch.seconds for epoch in epochs.values())
    rows = [
        {"method": method, "title": title, "value": seconds / slowest, "seconds": seconds}
        for method in ordered_methods(epochs)
        for title, seconds in [epochs[method]]
    ]
    words = ", ".join(f"{row['title']} {row['value']:.2f}" for row in rows)
    return Drawing(
        f"epoch-time-{folder_name(benchmark)}-{folder_name(device)}",
        f"{benchmark_title(benchmark)}: time of an epoch on {device}",
        f"Training time of an epoch on {device} relative to the slowest method, {slowest:.2f} s: {words}.",
        {"rows": rows},
        draw,
        remark,
    )


def draw(data: Mapping[str, Any]) -> Figure:
    return bars(data["rows"], "time of an epoch, slowest = 1", reference=1.0)
