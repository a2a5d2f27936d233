"""Whole runs of GPM's successors: killed in a task, they resume to the same result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from remnant.experiments.execute import Plan, Progress, run
from remnant.experiments.settings import resolve

SUCCESSORS = {
    "wsn": ("optimizer=adam", "lr=0.01"),
    "rogo": ("threshold=0.8", "relax_at=1"),
    "dfrogo": ("threshold=0.8", "relax_at=1"),
    "cuber": ("threshold=0.8", "trust=0.1", "agreement=-0.5"),
    "fs-dgpm": ("threshold=0.8", "memory=20", "optimizer.name=sgd", "optimizer.momentum=0.9"),
    "adam-nscl": ("optimizer=adam", "lr=0.01", "tolerance=100"),
    "api": ("threshold=0.8", "room=5", "aim=1"),
    "code-cl": ("free=3", "alike=0.0"),
}
HEADS = """
import torch
from remnant.data import Stream

def stream(seed):
    g = torch.Generator().manual_seed(seed)
    x = [torch.randn(40, 6, generator=g) for _ in range(2)]
    return Stream.from_arrays([(x, x[:, n : 2 * n + 2].argmax(1)) for n, x in enumerate(x)], test=0.3, valid=0.2)
"""


class KilledError(Exception):
    pass


@pytest.mark.filterwarnings("ignore:These layers are full")
@pytest.mark.parametrize("method", SUCCESSORS)
def test_killed_in_a_task_they_resume_to_the_same_result(method: str, tmp_path: Path) -> None:
    (tmp_path / "heads.py").write_text(HEADS)
    few = ("training.epochs=2", "training.batch=10", "network.hidden=[12, 10]", "training.patience=1")
    few = (*few, "training.factor=2", "training.lr_min=1e-9")  # early stopping restores the best model
    settings = resolve(f"{tmp_path / 'heads.py'}:stream", method, (*few, *SUCCESSORS[method]))
    (whole,) = run(Plan(settings, (0,), tmp_path / "whole", "cpu"), lambda progress: None)

    def kill(progress: Progress) -> None:
        if progress.epoch is not None and (progress.task, progress.epoch.epoch) == (1, 1):
            raise KilledError

    plan = Plan(settings, (0,), tmp_path / "cut", "cpu", checkpoint_every=1, checkpoint_seconds=0.0)
    with pytest.raises(KilledError):
        run(plan, kill)
    (resumed,) = run(plan, lambda progress: None)
    matrices, results = [folder.matrix() for folder in (whole, resumed)], [f.result() for f in (whole, resumed)]
    assert matrices[0] is not None
    assert matrices[1] is not None
    assert np.array_equal(matrices[0].values, matrices[1].values, equal_nan=True)
    assert results[0] is not None
    assert results[1] is not None
    assert all(results[0][each] == results[1][each] for each in ("capacity", "memory_bytes"))
