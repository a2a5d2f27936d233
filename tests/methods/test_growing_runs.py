"""Whole runs of the growing methods: from the command's settings, and killed and resumed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from remnant.experiments.execute import Plan, Progress, run
from remnant.experiments.settings import resolve

GROWING = {
    "apd": ("group_every=2",),
    "pgn": ("width=0.3",),
    "den": ('grow={"*" = 3}', 'split={"*" = 2}', "drift=0.001"),
    "rcl": ("trials=2", 'most={"*" = 3}'),
}
STREAM = """
import torch
from remnant.data import Stream

def stream(seed):
    g = torch.Generator().manual_seed(seed)
    x = [torch.randn(80, 6, generator=g) for _ in range(3)]
    return Stream.from_arrays([(x, x[:, n : n + 3].argmax(1)) for n, x in enumerate(x)], test=0.3, valid=0.2)
"""


class KilledError(Exception):
    pass


@pytest.mark.parametrize("at", [(1, 3), (2, 1)], ids=["in a task", "after the first epoch of the last"])
@pytest.mark.parametrize("method", GROWING)
def test_killed_in_a_task_they_resume_to_the_same_result(method: str, at: tuple[int, int], tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(STREAM)
    few = ("training.epochs=6", "training.batch=10", "lr=0.01", "optimizer=adam", "network.hidden=[12, 10]")
    settings = resolve(f"{tmp_path / 'own.py'}:stream", method, (*few, *GROWING[method]))
    (whole,) = run(Plan(settings, (0,), tmp_path / "whole", "cpu"), lambda progress: None)

    def kill(progress: Progress) -> None:
        if progress.epoch is not None and (progress.task, progress.epoch.epoch) == at:
            raise KilledError

    plan = Plan(settings, (0,), tmp_path / "cut", "cpu", checkpoint_every=1, checkpoint_seconds=0.0)
    with pytest.raises(KilledError):
        run(plan, kill)
    (resumed,) = run(plan, lambda progress: None)
    matrix, result = resumed.matrix(), resumed.result()
    expected_matrix, expected = whole.matrix(), whole.result()
    assert matrix is not None
    assert expected_matrix is not None
    assert np.array_equal(matrix.values, expected_matrix.values, equal_nan=True)
    assert result is not None
    assert expected is not None
    assert result["capacity"] == expected["capacity"] > 1.0


@pytest.mark.parametrize("method", GROWING)
@pytest.mark.parametrize("protocol", ["paper", "sane"])
def test_the_superclasses_have_a_recipe(method: str, protocol: str) -> None:
    settings = resolve("cifar100-superclass", method, protocol=protocol)
    assert settings.stream["layout"] == ("planar" if protocol == "sane" else "as-published")
    assert settings.stream["valid"] == 0.2
    assert ("patience" in settings.training) == (method == "pgn")
    assert settings.optimizer == ({} if method == "pgn" else {"name": "adam"})
