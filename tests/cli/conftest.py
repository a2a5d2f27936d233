"""Four small real runs for all tests that read runs, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from remnant.experiments import Plan, resolve, run

QUICK = ("stream.tasks=2", "training.epochs=1", "training.batch=20")


@pytest.fixture(scope="session")
def small_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPM and fine-tuning on two tasks of the digits, two seeds each. Copy them before you change them."""
    root = tmp_path_factory.mktemp("small") / "runs"
    for method in ("gpm", "finetune"):
        for seed in (0, 1):
            run(Plan(resolve("permuted-digits", method, QUICK), (seed,), root, "cpu"))
    return root
