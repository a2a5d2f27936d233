"""What is not needed is not loaded: help and lists do without torch, and say the same as the code they list."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from inspect import Parameter

import pytest

pytest.importorskip("typer")

import remnant
from remnant import data
from remnant.data import BENCHMARKS
from remnant.experiments.settings.resolve import catalogue, describe, recipe, recipe_names, resolve
from remnant.experiments.settings.resolve import schema as known
from remnant.experiments.settings.schema import networks, options_of
from remnant.memory import RANK_RULES
from remnant.methods import METHODS
from remnant.models import MLP, MODELS


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
    "words",
    [
        ["--help"],
        ["list", "methods"],
        ["list", "benchmarks"],
        ["list", "models"],
        ["list", "settings", "gpm"],
        ["list", "settings", "gpm", "--benchmark", "split-cifar100"],
        ["list", "settings", "gpm", "--benchmark", "own.py:stream"],
        ["list", "settings", "hat", "--benchmark", "pmnist"],  # refused
    ],
    ids=" ".join,
)
def test_help_and_lists_need_no_torch(words: list[str]) -> None:
    loaded = loaded_after(f"sys.argv = {['remnant', *words]}; from remnant.__main__ import main; main()")
    assert "remnant.cli" in loaded
    assert not loaded & {"torch", "scipy", "sklearn", "matplotlib"}


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


def test_the_lists_are_those_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {(m.name, m.summary) for m in catalogue.methods()} == {(name, first_line(m)) for name, m in METHODS.items()}
    assert [(m.name, m.summary) for m in catalogue.models()] == [(name, first_line(m)) for name, m in MODELS.items()]
    expected = {(name, entry.summary, entry.datasets) for name, entry in BENCHMARKS.items()}
    assert {tuple(entry) for entry in catalogue.benchmarks()} == expected
    monkeypatch.delitem(sys.modules, "remnant.methods")
    assert known.methods() == METHODS.keys()


def test_options_in_the_source_are_those_of_the_code() -> None:
    assert list(catalogue.model_options()) == list(MODELS)
    assert catalogue.stream_options().keys() == BENCHMARKS.keys()
    for name, options in catalogue.model_options().items():
        assert list(options.items()) == list(options_of(MODELS[name].__init__).items()), name  # in their order, too
    for name, options in catalogue.stream_options().items():
        assert list(options.items()) == list(options_of(BENCHMARKS[name].build).items()), name
    assert catalogue.rank_rules() == RANK_RULES
    assert {name for name in METHODS if catalogue.needs_task(name)} == {n for n, m in METHODS.items() if m.needs_task}


@pytest.mark.parametrize("method", METHODS)
def test_a_method_takes_every_option_listed_for_it_and_lacks_none_it_needs(method: str) -> None:
    takes = options_of(METHODS[method].__init__)
    needs = {name for name, option in takes.items() if option.default is Parameter.empty}
    for benchmark in (None, *(name for name in recipe_names() if method in recipe(name).methods)):
        listed = {setting.key for setting in describe(benchmark, method) if "." not in setting.key}
        assert needs <= listed <= takes.keys()


def test_a_network_one_adds_has_settings_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(MLP):
        def __init__(self, input_shape: Sequence[int], classes: int, *, depth: int = 3) -> None:
            super().__init__(input_shape, classes, hidden=[10] * depth)

    monkeypatch.setitem(MODELS, "own", Own)
    assert list(networks()["own"]) == ["depth"]
    assert resolve("pmnist", "gpm", ["network.name=own", "network.depth=2"]).network == {"name": "own", "depth": 2}


def test_a_name_with_its_type_beside_it_is_read_too() -> None:
    body = ast.parse("one: ClassVar[str]\none: ClassVar[str] = 'l2'\nother = True").body
    assert catalogue._assigned(body, "one") == "l2"
    assert catalogue._assigned(body, "other") is True
    assert catalogue._assigned(body, "third") is None


def test_a_terminal_without_the_letters_gets_question_marks() -> None:
    words = [sys.executable, "-m", "remnant", "reproduce", "table1a", "--no-run", "--methods", "gpm"]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert "93.91 ? 0.16" in done.stdout
