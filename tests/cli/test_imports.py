"""What is not needed is not loaded: help and lists do without torch, and say the same as the code they list."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("typer")

import remnant
from remnant import data
from remnant.data import BENCHMARKS
from remnant.experiments import catalogue
from remnant.methods import METHODS
from remnant.models import MODELS


def first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().splitlines()[0]


def loaded_after(code: str) -> set[str]:
    """The modules a fresh interpreter has loaded once it has run this."""
    report = (
        f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\nimport json; print(json.dumps(list(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "words", [["--help"], ["list", "methods"], ["list", "benchmarks"], ["list", "models"]], ids=" ".join
)
def test_help_and_lists_need_no_torch(words: list[str]) -> None:
    loaded = loaded_after(f"sys.argv = {['remnant', *words]}; from remnant.__main__ import main; main()")
    assert "remnant.cli" in loaded
    assert not loaded & {"torch", "sklearn", "matplotlib"}


def test_importing_remnant_loads_torch_with_its_first_name() -> None:
    assert "torch" not in loaded_after("import remnant; remnant.__version__; dir(remnant)")
    assert "torch" in loaded_after("from remnant import GPM")


@pytest.mark.parametrize("package", [remnant, data], ids=lambda package: package.__name__)
def test_every_public_name_is_there(package: object) -> None:
    for name in package.__all__:  # type: ignore[attr-defined]
        assert getattr(package, name) is not None
        assert name in dir(package)
    with pytest.raises(AttributeError, match="has no attribute 'no_such'"):
        _ = package.no_such  # type: ignore[attr-defined]


def test_the_lists_are_those_of_the_code() -> None:
    assert {(m.name, m.summary) for m in catalogue.methods()} == {(name, first_line(m)) for name, m in METHODS.items()}
    assert [(m.name, m.summary) for m in catalogue.models()] == [(name, first_line(m)) for name, m in MODELS.items()]
    expected = {(name, entry.summary, entry.datasets) for name, entry in BENCHMARKS.items()}
    assert {tuple(entry) for entry in catalogue.benchmarks()} == expected
