"""Code for GPUs runs on machines without one: on a pretend GPU, in a process that has it from the start."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.skipif(torch.version.cuda is not None, reason="needs a torch without CUDA"),
    pytest.mark.skipif(sys.platform != "linux", reason="loads torch's libraries as Linux does"),
]


def learn(*words: str | Path) -> str:
    command = [sys.executable, str(Path(__file__).with_name("learn.py")), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("what", ["mlp", "alexnet", "library"])
def test_what_is_learnt_is_the_same_on_a_gpu(what: str) -> None:
    """No operation mixes devices, and after a task's first step no step of any method makes the host wait."""
    found = json.loads(learn(what).splitlines()[-1])
    assert len(found) > 5
    for name, difference in found.items():
        assert isinstance(difference, float), f"{name}: {difference}"
        assert difference < 1e-6, name


def test_the_faults_of_a_gpu_are_faults_here() -> None:
    caught = json.loads(learn("faults"))
    assert caught
    assert all(caught.values()), caught


@pytest.mark.parametrize("method", ["gpm", "remnant-recall"])
def test_a_run_learns_on_a_gpu(method: str, tmp_path: Path) -> None:
    """Two seeds side by side, with captured steps and validation."""
    short = ("--set", "stream.tasks=2", "--set", "training.epochs=4", "--set", "training.batch=40", "--seeds", "2")
    said = learn("remnant", "run", "permuted-digits", method, "--device", "cuda", *short, "--runs", tmp_path)
    assert "not captured" not in said
    for folder in tmp_path.glob("*/*/*/seed*"):
        result = json.loads((folder / "result.json").read_text())
        assert result["acc"] > 0.5
    assert len(list(tmp_path.glob("*/*/*/seed*"))) == 2
