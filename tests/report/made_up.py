"""Makes small run folders for tests, complete or damaged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from remnant.evaluation import AccuracyMatrix, average_accuracy, backward_transfer, learning_accuracy
from remnant.experiments.runs import RunFolder
from remnant.experiments.settings import Settings, resolve

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
ENVIRONMENT = {"remnant": "0.1.0", "device": "Made-up GPU", "torch": "2.13.0"}


def settings(benchmark: str, method: str, overrides: Sequence[str] = (), **anything: Any) -> Settings:
    """A recipe's settings; `foreign` gives a method without a recipe those of fine-tuning."""
    if anything.pop("foreign", False):
        base = resolve(benchmark, "finetune", overrides).as_dict()
        return Settings.from_dict({**base, "method": method})
    return resolve(benchmark, method, overrides, **anything)


def matrix(last: Sequence[float], forgotten: float = 0.0) -> AccuracyMatrix:
    """A matrix with the last row `last`, in which each task was better by `forgotten` when it was learnt."""
    T = len(last)
    rows = [[last[i] + forgotten * (T - 1 - t) / (T - 1) * (t < T - 1) for i in range(t + 1)] for t in range(T)]
    return AccuracyMatrix(T, [np.clip(row, 0, 1) for row in rows])


def run(
    root: Path,
    chosen: Settings,
    seed: int = 0,
    last: Sequence[float] = (0.9, 0.8, 0.7),
    *,
    finished: bool = True,
    forgotten: float = 0.1,
    device: str = "Made-up GPU",
    memory_bytes: int = 1000,
    seconds: float = 10.0,
    ranks: dict[str, list[int]] | None = None,
    drift: dict[str, dict[str, list[float]]] | None = None,
    epochs: int = 0,
) -> Path:
    folder = RunFolder.create(root, chosen, seed)
    (folder.path / "environment.json").write_text(json.dumps({**ENVIRONMENT, "device": device}))
    made = matrix(last, forgotten)
    if not finished:
        folder.save_matrix(AccuracyMatrix(made.tasks, [made.values[0, :1]]))
        return folder.path
    folder.save_matrix(made)
    if ranks:
        folder.save_ranks(ranks)
    if drift:
        (folder.path / "drift.json").write_text(json.dumps(drift))
    for epoch in range(epochs):
        folder.record(task=0, epoch=epoch + 1, loss=1 / (epoch + 1), valid_accuracy=epoch / epochs, seconds=0.1)
    folder.save_result(
        {
            "acc": average_accuracy(made),
            "bwt": backward_transfer(made),
            "learning_accuracy": learning_accuracy(made),
            "seconds": {"train": seconds, "evaluate": 1.0, "consolidate": 0.5},
            "capacity": 1.0,
            "memory_bytes": memory_bytes,
            "parameters": 100,
        }
    )
    return folder.path


def histogram(width: float) -> dict[str, list[float]]:
    edges = np.linspace(-3, 3, 13)
    middles = (edges[:-1] + edges[1:]) / 2
    return {"edges": edges.tolist(), "counts": np.round(1000 * np.exp(-((middles / width) ** 2))).tolist()}


MLP_RANKS = {"hidden.0": [80, 70, 60], "hidden.1": [60, 20, 10], "head": [40, 20, 10]}


def all_sorts(root: Path) -> Path:
    """Runs of every kind that a report may find."""
    gpm, plain = settings("pmnist", "gpm"), settings("pmnist", "finetune")
    for seed, shift in enumerate((0.0, 0.01, -0.01)):
        last = [x + shift for x in (0.92, 0.93, 0.95)]
        run(root, gpm, seed, last, forgotten=0.02, ranks=MLP_RANKS, memory_bytes=800_000, epochs=4 if seed == 0 else 0)
        run(root, plain, seed, [x + shift / 2 for x in (0.5, 0.7, 0.95)], forgotten=0.4, memory_bytes=0, seconds=5.0)
    run(root, gpm, 7, finished=False)
    run(root, settings("pmnist", "gpm", ["training.epochs=1"]), 0, (0.88, 0.9, 0.92), ranks=MLP_RANKS)
    run(root, settings("pmnist", HOSTILE, foreign=True), 0, (0.6, 0.6, 0.6))
    broken = run(root, settings("pmnist", "multitask"), 0)
    (broken / "result.json").write_text('{"acc": 0.9')
    for eps, width in ((0.95, 1.0), (0.985, 0.3)):
        chosen = settings("split-cifar100", "gpm", [f"threshold.start={eps}"])
        run(root, chosen, 0, (eps - 0.3, 0.7, 0.7), drift={"conv2": histogram(width), "fc2": histogram(2 * width)})
    return root
