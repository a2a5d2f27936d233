"""`remnant resume` and `keep` name damaged folders and continue with the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
from typer.testing import CliRunner

from remnant.cli import app
from remnant.experiments.runs import RunFolder, find_runs
from remnant.experiments.settings import resolve

runner = CliRunner()
FEW = ("stream.tasks=2", "training.epochs=1", "training.batch=20")
OWN = """
import torch
from remnant.data import Stream

def stream(seed):
    return {"a": Stream}["b"]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def remnant(*words: str, code: int) -> Any:
    result = runner.invoke(app, list(words))
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def never_begun(benchmark: str, method: str, *overrides: str) -> RunFolder:
    return RunFolder.create(Path("runs"), resolve(benchmark, method, overrides), 0)


def damage(run: RunFolder) -> None:
    (run.path / "settings.json").write_text('{"benchmark": ')


def retype(run: RunFolder) -> None:
    file = run.path / "settings.json"
    file.write_text(file.read_text().replace('"seed": 0', '"seed": "0"'))


def no_options(run: RunFolder) -> None:
    file = run.path / "settings.json"
    file.write_text(file.read_text().replace('"stream": {', '"stream": 5, "x": {', 1))


def edit(run: RunFolder) -> None:
    file = run.path / "settings.json"
    file.write_text(file.read_text().replace('"lr": 0.05', '"lr": 0.5'))


def damage_execution(run: RunFolder) -> None:
    (run.path / "execution.json").write_text("[")


@pytest.mark.parametrize("spoil", [damage, retype, no_options, edit, damage_execution])
def test_a_damaged_folder_is_named_and_the_others_continue(spoil: Callable[[RunFolder], None]) -> None:
    bad = never_begun("permuted-digits", "ewc", *FEW)
    good = never_begun("permuted-digits", "finetune", *FEW)
    spoil(bad)
    result = remnant("resume", "runs", "--device", "cpu", code=1)
    assert result.stderr.count("Error: ") == 1
    assert str(bad.path) in result.stderr
    assert "Traceback" not in result.output
    assert good.finished
    assert "Nothing to resume" not in remnant("resume", "runs", code=1).output


def test_a_failing_stream_is_named_and_the_others_continue(folder: Path) -> None:
    (folder / "own.py").write_text(OWN)
    never_begun("own.py:stream", "finetune")
    good = never_begun("permuted-digits", "finetune", *FEW)
    result = remnant("resume", "runs", "--device", "cpu", code=1)
    assert "own.py:stream could not be built: KeyError: 'b' (own.py, line 6)." in result.stderr
    assert "Traceback" not in result.output
    assert good.finished


def test_an_error_in_the_code_shows_its_traceback_and_the_others_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(*_: object) -> None:
        raise TypeError("a mistake")

    monkeypatch.setattr("remnant.methods.ewc.EWC.start", mistaken)
    never_begun("permuted-digits", "ewc", *FEW)
    good = never_begun("permuted-digits", "finetune", *FEW)
    result = remnant("resume", "runs", "--device", "cpu", "--parallel", "1", code=1)
    assert "Traceback" in result.stderr
    assert "TypeError: a mistake" in result.stderr
    assert good.finished


def test_a_run_that_starts_again_says_so_even_with_quiet() -> None:
    run = never_begun("permuted-digits", "finetune", *FEW)
    (run.path / "checkpoint-000001.safetensors").write_bytes(b"not a checkpoint")
    result = remnant("resume", "runs", "--device", "cpu", "--quiet", code=0)
    assert "No complete checkpoint is left: the run starts again." in result.stderr
    assert run.finished


def test_keep_copies_the_others() -> None:
    remnant("run", "permuted-digits", "finetune", *(w for o in FEW for w in ("--set", o)), "--device", "cpu", code=0)
    bad = never_begun("permuted-digits", "ewc", *FEW)
    damage(bad)
    result = remnant("keep", "kept", code=1)
    assert f"{bad.path / 'settings.json'} is damaged" in result.stderr
    assert "Kept 1 run in kept." in result.stdout
    assert len(find_runs(Path("kept"))) == 1


def test_runs_of_the_same_settings_in_two_folders_are_all_resumed(folder: Path) -> None:
    for root in ("runs/here", "runs/there"):
        RunFolder.create(Path(root), resolve("permuted-digits", "finetune", FEW), 0)
    assert "Resuming 2 runs" in remnant("resume", "runs", code=0).stderr
    assert [run.finished for run in find_runs(folder / "runs")] == [True, True]
