"""Whole runs of the replay methods: on one head, on a head per task, killed and resumed, and on a residual network."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_runs import HEADS

from remnant.data import Split
from remnant.evaluation import AccuracyMatrix, backward_transfer
from remnant.experiments.execute import Plan, Progress
from remnant.experiments.execute import run as run_plan
from remnant.experiments.settings import resolve
from remnant.methods import METHODS
from remnant.models import build

REPLAY = ["er", "agem", "gem", "mega-i", "mega-ii"]


def run(
    method: str, root: Path, *overrides: str, benchmark: str = "permuted-digits"
) -> tuple[AccuracyMatrix, dict[str, Any]]:
    settings = resolve(benchmark, method, overrides)
    (folder,) = run_plan(Plan(settings, (0,), root, "cpu"), lambda progress: None)
    matrix, result = folder.matrix(), folder.result()
    assert matrix is not None
    assert result is not None
    return matrix, result


@pytest.fixture(scope="module")
def forgetting(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Of no memory at all."""
    root = tmp_path_factory.mktemp("finetune")
    return float(backward_transfer(run("finetune", root, "stream.tasks=2", "training.epochs=3")[0]))


@pytest.mark.parametrize("method", [*REPLAY, "mer"])
def test_they_forget_less_than_no_memory(method: str, forgetting: float, tmp_path: Path) -> None:
    matrix, result = run(method, tmp_path, "stream.tasks=2", "training.epochs=3")
    assert backward_transfer(matrix) > forgetting + 0.02
    assert result["memory_bytes"] == 200 * (64 * 4 + 8)
    assert matrix.values[1, 1] > 0.6


class KilledError(Exception):
    pass


@pytest.mark.parametrize("method", [*REPLAY, "mer", "icarl"])
def test_killed_in_a_task_they_resume_to_the_same_matrix(method: str, tmp_path: Path) -> None:
    (tmp_path / "heads.py").write_text(HEADS)
    benchmark = f"{tmp_path / 'heads.py'}:stream"
    few = ("training.epochs=3", "training.batch=10", "memory=20")
    whole, _ = run(method, tmp_path / "whole", *few, benchmark=benchmark)

    def kill(progress: Progress) -> None:
        if progress.task == 1 and progress.epoch is not None and progress.epoch.epoch == 2:
            raise KilledError

    plan = Plan(
        resolve(benchmark, method, few), (0,), tmp_path / "cut", "cpu", checkpoint_every=1, checkpoint_seconds=0.0
    )
    with pytest.raises(KilledError):
        run_plan(plan, kill)
    (folder,) = run_plan(plan, lambda progress: None)
    resumed = folder.matrix()
    assert resumed is not None
    assert np.array_equal(resumed.values, whole.values, equal_nan=True)


@pytest.mark.parametrize(("method", "norm"), [*zip(REPLAY, cycle(["batch", "running"])), ("gem", "running")])
def test_two_tasks_of_small_pictures_on_the_residual_network_of_five_datasets(method: str, norm: str) -> None:
    net = build("resnet18", input_shape=(3, 16, 16), classes=(10, 10), seed=1, width=2, stem_stride=1, norm=norm)
    options = {**resolve("five-datasets", method).options, "lr": 0.03, "memory": 40}
    learner = METHODS[method](net, **options)
    g = torch.Generator().manual_seed(0)
    for task in range(2):
        y = torch.arange(60) % 10
        split = Split.of(torch.randn(60, 3, 16, 16, generator=g) + torch.randn(10, 3, 16, 16, generator=g)[y], y)
        learner.start(task)
        first = F.cross_entropy(learner.logits(split.x, task), y)
        for _ in range(6):
            for part in torch.randperm(60).split(20):
                learner.step(split.x[part], split.y[part])
        learner.finish(task, split)
        assert F.cross_entropy(learner.logits(split.x, task), y) < first - 0.2
    assert learner.nbytes == 40 * (3 * 16 * 16 * 4 + 8)
