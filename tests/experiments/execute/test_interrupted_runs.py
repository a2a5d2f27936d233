"""Runs that cannot be resumed because they were moved or their settings were edited."""

from pathlib import Path

import pytest

from remnant.experiments.execute import Plan, unfinished
from remnant.experiments.runs import RunFolder, find_runs
from remnant.experiments.settings import resolve


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return Plan(resolve("permuted-digits", "finetune"), (0,), tmp_path / "runs", "cpu").folder(0)


def test_a_run_with_too_few_folders_above_it_was_moved(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Path, "resolve", lambda path: Path("/mine")
    )  # as if it stood there: not a place to write in a test
    plans, (trouble,) = unfinished(run.path, "cpu", 1)
    assert plans == []
    assert "was moved" in trouble


def test_edited_settings_do_not_start_another_run(run: RunFolder, tmp_path: Path) -> None:
    file = run.path / "settings.json"
    assert '"lr": 0.05' in file.read_text()
    file.write_text(file.read_text().replace('"lr": 0.05', '"lr": 0.5'))
    plans, (trouble,) = unfinished(tmp_path, "cpu", 1)
    assert plans == []
    assert "Were they edited?" in trouble
    assert [found.path for found in find_runs(tmp_path)] == [run.path]
