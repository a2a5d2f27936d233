"""Help, version and shell completion."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("typer")
from typer.main import get_command
from typer.testing import CliRunner

import remnant
from remnant.cli import app


def commands(group: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, command in group.commands.items():
        below = commands(command, (*path, name)) if hasattr(command, "commands") else [(*path, name)]
        found += below
    return found


ALL = commands(get_command(app))


def shown(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    return result.output


def test_version() -> None:
    assert shown("--version") == f"remnant {remnant.__version__}\n"


def test_help_lists_every_command_without_cutting_its_summary_short() -> None:
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).output
    assert all(command[0] in text for command in ALL)
    assert "..." not in text.split("Commands:")[1]
    assert "--install-completion" in text


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_command_has_an_example_that_names_it(words: tuple[str, ...]) -> None:
    assert f"Example: remnant {' '.join(words)}" in shown(*words, "--help")


def test_run_says_that_files_are_accepted() -> None:
    text = shown("run", "--help")
    assert "path/to/file.py:name" in text
    assert "path/to/file.py:Name" in text
