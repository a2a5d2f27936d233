"""A run that cannot start leaves no folder behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remnant.data.errors import DataError
from remnant.errors import RunError
from remnant.experiments.execute import Plan, Progress, sweep_rows, sweep_settings, unfinished
from remnant.experiments.execute import run as run_plan
from remnant.experiments.runs import find_runs
from remnant.experiments.settings import resolve
from remnant.methods import Finetune

FEW = ("stream.tasks=2", "training.epochs=1", "training.batch=20")
TOO_LARGE = (*FEW, "network.name=alexnet")


def plan(root: Path, *overrides: str, benchmark: str = "permuted-digits", seeds: tuple[int, ...] = (0,)) -> Plan:
    return Plan(resolve(benchmark, "finetune", overrides), seeds, root, "cpu")


@pytest.mark.usefixtures("quick_children")
@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_a_network_that_does_not_fit_leaves_no_folder(seeds: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot take images of 8×8"):
        run_plan(plan(tmp_path, *TOO_LARGE, seeds=seeds), lambda progress: None)
    assert list(tmp_path.iterdir()) == []


def test_missing_data_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMNANT_DATA", str(tmp_path / "store"))
    with pytest.raises(DataError):
        run_plan(plan(tmp_path / "runs", benchmark="pmnist"), lambda progress: None)
    assert list((tmp_path / "runs").iterdir()) == []


def test_other_runs_stay(tmp_path: Path) -> None:
    (finished,) = run_plan(plan(tmp_path, *FEW), lambda progress: None)
    with pytest.raises(RunError):
        run_plan(plan(tmp_path, *TOO_LARGE), lambda progress: None)
    assert [run.path for run in find_runs(tmp_path)] == [finished.path]
    assert list(finished.path.parents[1].iterdir()) == [finished.path.parent]


def test_the_table_of_a_sweep_makes_no_folder(tmp_path: Path) -> None:
    points = sweep_settings("permuted-digits", "gpm", ["threshold=0.9,0.95"], FEW)
    plans = {change: Plan(settings, (0,), tmp_path, "cpu") for change, settings in points.items()}
    assert [row["seeds"] for row in sweep_rows(plans)] == ["0", "0"]
    assert list(tmp_path.iterdir()) == []


def test_a_run_with_a_finished_epoch_stays_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RunError("at the end of the task")

    monkeypatch.setattr(Finetune, "finish", fails)
    with pytest.raises(RunError, match="at the end"):
        run_plan(plan(tmp_path, *FEW), lambda progress: None)
    (run,) = find_runs(tmp_path)
    assert run.metrics()


def test_an_interrupted_start_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Finetune, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_plan(plan(tmp_path, *FEW, seeds=(3,)), lambda progress: None)
    ((resumed,), _) = unfinished(tmp_path, "cpu", 1)
    assert resumed.seeds == (3,)


def test_a_folder_that_existed_before_stays_and_is_named(tmp_path: Path) -> None:
    """The user may need it, for example on a machine that has the data."""
    asked = plan(tmp_path, *TOO_LARGE)
    old = asked.folder(0)
    heard: list[Progress] = []
    with pytest.raises(RunError, match="cannot take images"):
        run_plan(asked, heard.append)
    assert [run.path for run in find_runs(tmp_path)] == [old.path]
    assert [p.note for p in heard] == [f"no epoch was completed in {old.path}; remove it if you do not need it"]
    assert not old.begun


def test_a_folder_that_another_process_writes_gets_no_note(tmp_path: Path) -> None:
    asked = plan(tmp_path, *FEW)
    heard: list[Progress] = []
    with asked.folder(0).lock(), pytest.raises(RunError, match="is being written"):
        run_plan(asked, heard.append)
    assert heard == []
    assert len(find_runs(tmp_path)) == 1


def test_a_new_folder_that_another_process_takes_first_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = plan(tmp_path, *FEW)
    made = Plan.folder

    def folder(self: Plan, seed: int) -> Any:
        new = made(self, seed)
        monkeypatch.setattr(Plan, "folder", made)
        locks.append(new.lock())
        locks[0].__enter__()
        return new

    locks: list[Any] = []
    monkeypatch.setattr(Plan, "folder", folder)
    with pytest.raises(RunError, match="is being written"):
        run_plan(asked, lambda progress: None)
    assert len(find_runs(tmp_path)) == 1
    locks[0].__exit__(None, None, None)
