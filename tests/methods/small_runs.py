"""Small runs: what a method forgets in one, and one that is killed and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from remnant.evaluation import backward_transfer
from remnant.experiments.execute import Plan, Progress, run
from remnant.experiments.settings import resolve

HEADS = """
import torch
from remnant.data import Stream

def stream(seed):
    g = torch.Generator().manual_seed(seed)
    x = [torch.randn(60, 6, generator=g) for _ in range(3)]
    return Stream.from_arrays([(x, x[:, n : 2 * n + 2].argmax(1)) for n, x in enumerate(x)], test=0.3, valid=0.2)
"""


class KilledError(Exception):
    pass


def transfer_of(method: str, root: Path, *overrides: str) -> float:
    """The backward transfer of a run."""
    (folder,) = run(Plan(resolve("permuted-digits", method, overrides), (0,), root, "cpu"), lambda progress: None)
    matrix = folder.matrix()
    assert matrix is not None
    return float(backward_transfer(matrix))


def resumed_to_the_same_matrix(method: str, root: Path, *overrides: str) -> dict[str, Any]:
    """Runs three tasks without a break, and again with a kill in the last one. Returns the result of the second run."""
    (root / "heads.py").write_text(HEADS)
    settings = resolve(f"{root / 'heads.py'}:stream", method, overrides)
    (whole,) = run(Plan(settings, (0,), root / "whole", "cpu"), lambda progress: None)

    def kill(progress: Progress) -> None:
        if progress.task == 2 and progress.epoch is not None and progress.epoch.epoch == 2:
            raise KilledError

    plan = Plan(settings, (0,), root / "cut", "cpu", checkpoint_every=1, checkpoint_seconds=0.0)
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
    return results[1]
