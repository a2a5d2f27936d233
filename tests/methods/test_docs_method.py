"""The method on the page "Adding a method" is short, and it works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from remnant.evaluation import backward_transfer
from remnant.experiments import Plan, resolve, run
from remnant.methods import METHODS, Method
from remnant.models import build
from remnant.options import OptionError

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-method.md"
HOOKS = {"start", "loss", "step", "finish", "logits", "on_epoch_start", "on_epoch_end", "refresh"}


def code() -> str:
    (found,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return str(found)


@pytest.fixture
def name(tmp_path: Path) -> str:
    """The page's file, as the command line names the class in it."""
    file = tmp_path / "my_method.py"
    file.write_text(code(), encoding="utf-8")
    return f"{file}:MyMethod"


def matrix(method: str, root: Path, *overrides: str) -> Any:
    few = ("stream.tasks=2", "training.epochs=3", "training.batch=10", "lr=0.05")
    (folder,) = run(
        Plan(resolve("permuted-digits", method, (*few, *overrides)), (0,), root, "cpu"), lambda progress: None
    )
    return folder.matrix()


def test_the_page_keeps_its_word(name: str) -> None:
    assert len(code().strip().splitlines()) < 30
    assert len(HOOKS & vars(METHODS[name]).keys()) <= 4
    assert "adding-a-method.md" in (PAGE.parents[1] / "mkdocs.yml").read_text()
    for hook in HOOKS:
        assert f"`{hook}(" in PAGE.read_text(encoding="utf-8") or f"{hook}()" in PAGE.read_text(encoding="utf-8")


def test_its_method_runs_and_forgets_less(name: str, tmp_path: Path) -> None:
    forgets = backward_transfer(matrix("finetune", tmp_path))
    remembers = backward_transfer(matrix(name, tmp_path))
    stiff = backward_transfer(matrix(name, tmp_path, "strength=1.5"))
    assert forgets < remembers - 0.02
    assert remembers <= stiff + 0.02
    assert matrix(name, tmp_path / "0", "strength=0.0") == matrix("finetune", tmp_path)


def test_its_state_is_whole(name: str) -> None:
    def fresh() -> Method:
        return METHODS[name](build("mlp", input_shape=(4,), classes=3, seed=1, hidden=(5,)), lr=0.1, strength=0.5)

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


def test_its_settings_are_those_of_its_signature(name: str) -> None:
    assert resolve("permuted-digits", name).options == {"lr": 0.01, "anneal": False, "strength": 0.3}
    assert resolve("permuted-digits", name, ["strength=2"]).options["strength"] == 2.0
    with pytest.raises(OptionError, match="Did you mean 'strength'"):
        resolve("permuted-digits", name, ["strengt=2"])
    with pytest.raises(OptionError, match="strength takes a number from 0 to 100"):
        resolve("permuted-digits", name, ["strength=1000"])
