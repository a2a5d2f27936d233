"""`remnant clean`: it lists, asks and removes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
from typer.testing import CliRunner

from remnant.cli import app
from remnant.experiments.runs import RunFolder, find_runs, run_folders


def remnant(*words: str | Path, answers: str = "", code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(word) for word in words], input=answers)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def runs(small_runs: Path, tmp_path: Path) -> Path:
    """Two good runs, an unfinished one, a corrupted one and a copy."""
    root = Path(shutil.copytree(small_runs, tmp_path / "runs"))
    first, second, third, _ = find_runs(root)
    (first.path / "result.json").unlink()
    (second.path / "result.json").write_text("{", encoding="utf-8")
    shutil.copytree(third.path, third.path.with_name("seed0 (copy)"))
    return root


def count(runs: Path) -> int:
    return len(run_folders(runs))


def test_it_lists_each_kind_and_asks(runs: Path) -> None:
    result = remnant("clean", runs, answers="n\ny\nn\n")
    assert re.findall(r"^ ?(\w+): ", result.stdout, re.M) == ["unfinished", "duplicate", "corrupted"]
    assert "Remove 1 unfinished run? (remnant resume would continue them.)" in result.stderr
    assert "Removed 1 duplicate run." in result.stderr
    assert count(runs) == 4


def test_no_answer_removes_nothing(runs: Path) -> None:
    remnant("clean", runs, code=1)
    assert count(runs) == 5


def test_yes_removes_all_without_asking(runs: Path) -> None:
    result = remnant("clean", runs, "--yes")
    assert "?" not in result.output
    assert [run.finished for run in find_runs(runs)] == [True, True]
    assert count(runs) == 2
    assert f"Nothing to clean in {runs}." in remnant("clean", runs, "-y").stdout


def test_only_one_kind(runs: Path) -> None:
    remnant("clean", runs, "--only", "corrupted", "--yes")
    assert count(runs) == 4
    assert "Did you mean 'duplicate'?" in remnant("clean", runs, "--only", "duplicates", code=1).stderr


def test_what_is_left_alone_is_named(runs: Path) -> None:
    first = find_runs(runs)[0]
    with RunFolder.open(first.path).lock():
        result = remnant("clean", runs, "--only", "unfinished", "--yes")
        assert f"Left alone: {first.path} is being written by another process." in result.stderr
    (first.path / "mine.txt").write_text("mine", encoding="utf-8")
    failed = remnant("clean", runs, "--only", "unfinished", "--yes", code=1)
    assert "still has mine.txt. Only the run's own files were removed." in failed.stderr
    assert (first.path / "mine.txt").is_file()
