"""`remnant report`: its output and its exit code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from made_up import run, settings
from typer.testing import CliRunner, Result

from remnant.cli import app


def remnant(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_output_counts_runs_and_names_damaged_ones(tmp_path: Path) -> None:
    run(tmp_path / "runs", settings("pmnist", "gpm"), 0, finished=False)
    broken = run(tmp_path / "runs", settings("pmnist", "gpm"), 1)
    (broken / "accuracy.csv").write_text("[rot]")
    result = remnant("report", tmp_path / "runs", "-o", tmp_path / "report")
    assert result.exit_code == 0, result.output
    assert "index.html: 0 finished runs, 1 unfinished," in result.output
    assert "Left out: pmnist/gpm/" in result.output
    assert (tmp_path / "report" / "index.html").is_file()


def test_docs_keep_the_notes(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "results-notes.md").write_text("## Why\n\nBecause <b>so</b>.\n")
    run(tmp_path / "runs", settings("pmnist", "gpm"), 0)
    result = remnant("report", tmp_path / "runs", "-o", tmp_path / "report", "--docs", docs)
    assert result.exit_code == 0, result.output
    assert (docs / "results.md").read_text(encoding="utf-8").endswith("## Why\n\nBecause <b>so</b>.\n")
    assert (docs / "figures" / "first-task-pmnist.svg").is_file()


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    result = remnant("report", tmp_path / "nowhere", "-o", tmp_path / "report")
    assert result.exit_code == 1
    assert "is not a folder. Give a folder that contains run folders" in result.output.replace("\n", " ")


def test_a_file_instead_of_the_folder_is_an_error(tmp_path: Path) -> None:
    run(tmp_path / "runs", settings("pmnist", "gpm"), 0)
    (tmp_path / "report").write_text("mine")
    result = remnant("report", tmp_path, "-o", tmp_path / "report")
    assert result.exit_code == 1
    assert "needs a folder where there is a file" in result.output
    assert (tmp_path / "report").read_text() == "mine"


@pytest.mark.parametrize("name", ["matplotlib", "jinja2"])
def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for loaded in [module for module in sys.modules if module.startswith(("remnant.report.", name))]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, name, None)
    result = remnant("report", tmp_path, "-o", tmp_path / "report")
    assert result.exit_code == 1
    assert f"The report needs {name}, which is not installed: pip install matplotlib jinja2 scipy." in result.output
