"""`remnant list` shows the built-in methods, models, benchmarks and settings, and those of the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner

from remnant.cli import app
from remnant.data import BENCHMARKS
from remnant.experiments.settings import RECIPES, describe, recipe
from remnant.methods import METHODS
from remnant.models import MODELS
from remnant.options import REQUIRED, options_of


def listed(*words: str) -> str:
    result = CliRunner().invoke(app, ["list", *words], env={"COLUMNS": "300"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("command", "registry"), [("methods", METHODS), ("models", MODELS), ("benchmarks", BENCHMARKS)]
)
def test_a_list_has_every_name(command: str, registry: dict[str, object]) -> None:
    first_column = [line.split()[0] for line in listed(command).splitlines()[1:] if not line.startswith(" ")]
    assert first_column == sorted(registry)


def test_a_bare_list_has_all_of_them() -> None:
    assert listed() == listed("methods") + listed("models") + listed("benchmarks")


def test_entry_points_are_listed_also_if_they_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "plug-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[remnant.methods]\npull = plug_in:Pull\nbroken = plug_in:Gone\n")
    (tmp_path / "plug_in.py").write_text("class Pull:\n    '''Pulls weights back.'''\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    lines = {line.split()[0]: line for line in listed("methods").splitlines()}
    assert "Pulls weights back." in lines["pull"]
    assert "could not be run" in lines["broken"]  # the rest may be on the next line of a narrow terminal


def test_the_settings_of_a_method_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from remnant.methods import Method\n"
        "class Own(Method):\n"
        "    def __init__(self, network, *, strength: float = 0.3, **options):\n"
        "        super().__init__(network, **options)\n"
    )
    lines = {line.split()[0]: line for line in listed("settings", f"{tmp_path / 'own.py'}:Own").splitlines() if line}
    assert "0.3" in lines["strength"]
    assert "default.toml" in lines["training.epochs"]
    assert lines[f"{tmp_path / 'own.py'}:Own:"].endswith(": It has no description.")
    assert "optimizer.weight_decay" in lines


def test_a_setting_without_a_value_is_called_none() -> None:
    lines = {line.split()[0]: line for line in listed("settings", "gpm").splitlines() if line}
    assert lines["training.patience"].split()[1] == "none"


def test_the_settings_are_explained() -> None:
    text = listed("settings", "ewc")
    assert "λ is the `strength`" in text
    assert "divide the rate by `factor`" in text


@pytest.mark.parametrize("method", METHODS)
def test_a_method_takes_every_option_listed_for_it_and_lacks_none_it_needs(method: str) -> None:
    options = options_of(METHODS[method])
    needed = {name for name, option in options.items() if option.default is REQUIRED}
    for benchmark in (None, *(name for name in RECIPES if method in recipe(name).methods)):
        keys = {setting.key for setting in describe(benchmark, method) if "." not in setting.key}
        assert needed <= keys == options.keys()
