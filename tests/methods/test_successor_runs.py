"""Whole runs of GPM's successors: killed in a task, they resume to the same result."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import resumed_to_the_same_matrix

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


@pytest.mark.filterwarnings("ignore:These layers are full")
@pytest.mark.parametrize("method", SUCCESSORS)
def test_killed_in_a_task_they_resume_to_the_same_result(method: str, tmp_path: Path) -> None:
    few = ("training.epochs=2", "training.batch=10", "network.hidden=[12, 10]", "training.patience=1")
    few = (*few, "training.factor=2", "training.lr_min=1e-9")  # early stopping restores the best model
    resumed_to_the_same_matrix(method, tmp_path, *few, *SUCCESSORS[method])
