"""The method on the page "Adding a method" is short, and it works as it stands there."""

from __future__ import annotations

import re
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from remnant.evaluation import backward_transfer
from remnant.experiments.execute.plan import Plan, execute
from remnant.experiments.settings import recipe, resolve
from remnant.methods import METHODS, Method
from remnant.options import OptionError

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-method.md"


def block(language: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(found) == 1
    return str(found[0])


@pytest.fixture
def l2(monkeypatch: pytest.MonkeyPatch) -> type[Method]:
    """The page's class, in METHODS and in the recipe of the digits."""
    module = types.ModuleType("remnant.methods.l2")
    module.__package__ = "remnant.methods"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(block("python"), str(PAGE), "exec"), module.__dict__)
    method: type[Method] = module.__dict__["L2"]
    monkeypatch.setitem(METHODS, method.name, method)
    entry: dict[str, Any] = tomllib.loads(block("toml"))["methods"]
    known = recipe("permuted-digits", "paper")
    monkeypatch.setitem(known.methods, "l2", entry["l2"])
    return method


def matrix(method: str, root: Path, *overrides: str, **how: Any) -> Any:
    few = ("stream.tasks=2", "training.epochs=3", "training.batch=10")
    asked = Plan(resolve("permuted-digits", method, (*few, *overrides)), (0,), root, "cpu", **how)
    (folder,) = execute(asked, lambda progress: None)
    return folder.matrix()


def test_the_page_keeps_its_word() -> None:
    assert len(block("python").strip().splitlines()) < 40
    assert "adding-a-method.md" in (PAGE.parents[1] / "mkdocs.yml").read_text()


def test_its_method_runs_and_forgets_less(l2: type[Method], tmp_path: Path) -> None:
    forgets = backward_transfer(matrix("finetune", tmp_path))
    remembers = backward_transfer(matrix("l2", tmp_path))
    stiff = backward_transfer(matrix("l2", tmp_path, "strength=1.5"))
    assert forgets < remembers - 0.02
    assert remembers <= stiff + 0.02
    assert matrix("l2", tmp_path / "0", "strength=0.0") == matrix("finetune", tmp_path)


def test_its_state_is_whole(l2: type[Method]) -> None:
    from remnant.models import build

    def fresh() -> Method:
        return l2(build("mlp", input_shape=(4,), classes=3, seed=1, hidden=(5,)), lr=0.1, strength=0.5)

    x, y = torch.randn(20, 4), torch.randint(0, 3, (20,))
    one, other = fresh(), fresh()
    one.start(0)
    one.step(x, y)
    one.finish(0, None)  # type: ignore[arg-type]
    one.start(1)
    one.step(x, y)
    other.start(1)
    other.load_state_dict(one.state_dict())
    for _ in range(3):
        assert torch.equal(one.step(x, y), other.step(x, y))


def test_the_settings_it_has_are_those_of_its_entry(l2: type[Method]) -> None:
    assert resolve("permuted-digits", "l2", ["strength=2"]).options == {"lr": 0.05, "strength": 2.0}
    with pytest.raises(OptionError, match="Did you mean 'strength'"):
        resolve("permuted-digits", "l2", ["strengt=2"])
