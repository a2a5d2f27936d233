"""Commands load no more than they need: help does without torch, and lists without plotting or scikit-learn."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("typer")

import remnant
from remnant import data

# Importing torch takes seconds, so one interpreter runs all commands that need it.
WITH_TORCH = """
import json, sys
from remnant.__main__ import main

def command(*words):
    sys.argv = ["remnant", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words

command("list", "methods")
command("list", "settings", "gpm")
print(json.dumps(list(sys.modules)))
command("reproduce", "table1a", "--no-run", "--methods", "gpm")
"""


def loaded_after(code: str) -> set[str]:
    """The modules a fresh interpreter has loaded once it has run this."""
    report = (
        f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\nimport json; print(json.dumps(list(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def with_torch() -> str:
    """What commands print on a terminal without Unicode, and after the lists the modules that they loaded."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", WITH_TORCH], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "words",
    [["--help"], *([command, "--help"] for command in ("run", "list", "report", "compare", "show", "clean"))],
    ids=" ".join,
)
def test_help_needs_no_torch(words: list[str]) -> None:
    loaded = loaded_after(f"sys.argv = {['remnant', *words]}; from remnant.__main__ import main; main()")
    assert "remnant.cli" in loaded
    assert not loaded & {"torch", "scipy", "sklearn", "matplotlib"}


def test_lists_need_no_more_than_torch(with_torch: str) -> None:
    (loaded,) = (set(json.loads(line)) for line in with_torch.splitlines() if line.startswith('["'))
    assert "torch" in loaded
    assert not loaded & {"scipy", "sklearn", "matplotlib", "torch._dynamo"}


def test_importing_remnant_loads_no_torch() -> None:
    assert "torch" not in loaded_after("import remnant; remnant.__version__; dir(remnant)")


@pytest.mark.parametrize("package", [remnant, data], ids=lambda package: package.__name__)
def test_every_public_name_is_there(package: object) -> None:
    for name in package.__all__:  # type: ignore[attr-defined]
        assert getattr(package, name) is not None
        assert name in dir(package)
    with pytest.raises(AttributeError, match="has no attribute 'no_such'"):
        _ = package.no_such  # type: ignore[attr-defined]


def test_a_terminal_without_unicode_gets_question_marks(with_torch: str) -> None:
    assert "93.91 ? 0.16" in with_torch
