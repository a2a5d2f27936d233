"""Torch's switches for a device, and a GPU that runs out of memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from remnant.errors import RunError
from remnant.experiments.execute import Plan, Progress, RunInProgress, gpu_scheduler, prepare_torch
from remnant.experiments.execute import run as run_plan
from remnant.experiments.runs import find_runs
from remnant.experiments.settings import resolve

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _switches_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = before[1:]


@pytest.mark.parametrize(
    ("deterministic", "tf32", "short"),
    [(False, True, True), (False, False, False), (True, True, False), (True, False, False)],
)
def test_tf32_is_on_unless_switched_off_or_deterministic(deterministic: bool, tf32: bool, short: bool) -> None:
    torch.backends.cudnn.benchmark = True
    prepare_torch(CPU, deterministic=deterministic, tf32=tf32)
    assert torch.get_float32_matmul_precision() == ("high" if short else "highest")
    assert torch.backends.cudnn.allow_tf32 is short
    assert not torch.backends.cudnn.benchmark  # which algorithm it chooses would be up to the moment
    assert torch.are_deterministic_algorithms_enabled() is deterministic
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(("before", "after"), [("", ":16:8"), (":4096:8", ":4096:8")])
def test_the_cublas_workspace_is_small_unless_the_user_sets_it(
    before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not before:
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    prepare_torch(CPU, deterministic=False, tf32=True)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == after


@pytest.mark.usefixtures("quick_children")
def test_out_of_memory_says_what_to_do_and_loses_no_finished_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two seeds run side by side; the first has learned two of three tasks when the memory is full."""

    def full(runs: Sequence[RunInProgress], device: torch.device) -> None:
        for run in runs[:1]:
            torch.manual_seed(run.seed)  # a CPU has one generator for both
            for start in run.work():
                if start is not None:
                    start()
                matrix = run.folder.matrix()
                if matrix is not None and matrix.learned == 2:
                    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore.")

    def plan(root: Path) -> Plan:
        few = ("stream.tasks=3", "training.epochs=2", "training.batch=20")
        return Plan(resolve("permuted-digits", "gpm", few), (0, 1), root, "cpu", parallel=2, deterministic=True)

    asked = plan(tmp_path / "full")
    with monkeypatch.context() as patch:
        patch.setattr(gpu_scheduler, "run_side_by_side", full)
        with pytest.raises(RunError, match=r"out of memory \(CUDA.*2\.00 GiB\.\).*--parallel 1\.$"):
            gpu_scheduler.run_on_gpu(asked, [asked.folder(seed) for seed in (0, 1)], CPU, lambda progress: None)
    kept = asked.folder(0)
    assert not kept.finished
    assert (state := kept.load_checkpoint()[0]) is not None
    assert state["task"] == 2
    whole, expected = run_plan(asked, lambda progress: None), run_plan(plan(tmp_path / "whole"), lambda progress: None)
    for one, other in zip(whole, expected, strict=True):
        assert (one.path / "accuracy.csv").read_bytes() == (other.path / "accuracy.csv").read_bytes()


def test_a_run_of_another_kind_of_device_is_not_continued_with_other_random_numbers(tmp_path: Path) -> None:
    plan = Plan(resolve("permuted-digits", "finetune", ("stream.tasks=2", "training.epochs=1")), (0,), tmp_path, "cpu")

    def stop(progress: Progress) -> None:
        if progress.row:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_plan(plan, stop)
    (run,) = find_runs(tmp_path)
    state, _ = run.load_checkpoint()
    assert state is not None
    run.save_checkpoint({**state, "random": torch.zeros(16, dtype=torch.uint8)})  # a GPU's state: a seed and an offset
    with pytest.raises(
        RunError, match=r"started on another kind of device than cpu, which.* Resume it with --device cuda"
    ):
        run_plan(plan)
    assert not run.finished
