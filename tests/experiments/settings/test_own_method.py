"""A method of one's own: it gets what its recipe says, and what its author forgot or broke is said in time."""

from __future__ import annotations

import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from remnant.data import Split
from remnant.experiments.execute import plan as executor
from remnant.experiments.execute.plan import Plan, execute
from remnant.experiments.execute.run import Progress
from remnant.experiments.runs.folder import RunError
from remnant.experiments.settings.recipe import recipe
from remnant.experiments.settings.resolve import SettingsError, resolve
from remnant.methods import METHODS, Method
from remnant.models import Network, build

FEW = ("stream.tasks=2", "training.epochs=1", "training.batch=20")
Added = Callable[..., None]


class Own(Method):
    name = "own"

    def __init__(self, network: Network, *, lr: float, **options: Any) -> None:
        super().__init__(network, lr=lr)
        self.options = options
        self.kept: list[Tensor] = []

    def finish(self, task: int, train: Split) -> None:
        self.kept.append(train.x[:10].clone())

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "kept": {"by task": (self.kept, 3, "words")}}


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Added:
    """Puts the method into METHODS, and an entry into the recipe of the digits."""

    def add(kind: type[Method] = Own, **options: Any) -> None:
        monkeypatch.setitem(METHODS, "own", kind)
        monkeypatch.setitem(recipe("permuted-digits", "paper").methods, "own", options)

    return add


def plan(root: Path, *overrides: str) -> Plan:
    return Plan(resolve("permuted-digits", "own", (*FEW, *overrides)), (0,), root, "cpu")


@pytest.mark.parametrize(
    ("name", "value", "other"), [("threshold", 0.97, 0.5), ("memory", 0.1, 0.2), ("alpha_start", 1.0, 3.0)]
)
def test_an_option_that_is_called_as_one_of_ours_is_its_own(
    added: Added, name: str, value: float, other: float
) -> None:
    added(lr=0.1, **{name: value})
    assert resolve("permuted-digits", "own").options[name] == value
    assert resolve("permuted-digits", "own", [f"{name}={other}"]).options[name] == other
    with pytest.raises(SettingsError, match=f"{name} takes a number"):
        resolve("permuted-digits", "own", [f"{name}=many"])


def test_a_threshold_that_is_a_number_has_no_parts(added: Added) -> None:
    added(lr=0.1, threshold=0.97)
    with pytest.raises(SettingsError, match="threshold takes a number"):
        resolve("permuted-digits", "own", ["threshold.start=0.9"])


def test_a_recipe_without_a_rate_is_refused(added: Added) -> None:
    added(rate=0.1)
    with pytest.raises(SettingsError, match=r"methods\.own has no lr, which every method takes"):
        resolve("permuted-digits", "own")


def test_a_start_that_forgets_the_task_is_refused(added: Added, tmp_path: Path) -> None:
    added(type("NoStart", (Own,), {"start": lambda self, task: None}), lr=0.1)
    with pytest.raises(RunError, match=r"own: its start\(task\) must call super\(\)\.start\(task\)"):
        execute(plan(tmp_path), lambda progress: None)


def test_what_it_keeps_is_counted_off_its_state() -> None:
    method = Own(build("mlp", input_shape=(4,), classes=3, seed=1, hidden=(5,)), lr=0.1)
    assert method.nbytes == 0
    for task in range(2):
        method.finish(task, Split.of(torch.randn(20, 4), torch.zeros(20, dtype=torch.int64)))
    assert method.nbytes == 2 * 10 * 4 * 4


def test_early_stopping_without_a_validation_set_is_not_silent(added: Added, tmp_path: Path) -> None:
    added(lr=0.1)
    stopping = ("training.patience=2", "training.factor=2", "training.lr_min=0.01")

    def said(*overrides: str) -> list[str]:
        heard: list[Progress] = []
        execute(plan(tmp_path, *overrides), heard.append)
        return [progress.note for progress in heard if progress.note]

    (note,) = said("stream.valid=0.0", *stopping)
    assert note == "not every task has a validation set (stream.valid): those train all their epochs"
    assert said("stream.valid=0.1", *stopping) == []
    assert said("stream.valid=0.0") == []


def test_a_mistake_in_its_code_is_shown_whole_also_beside_other_seeds(
    added: Added, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def finish(self: Method, task: int, train: Split) -> None:
        raise ValueError("shapes that do not fit")

    added(type("Broken", (Own,), {"finish": finish}), lr=0.1)
    monkeypatch.setattr(executor, "_end_with_parent", lambda: None)  # here there is none
    said: queue.Queue[Any] = queue.Queue()
    executor._child(plan(tmp_path), 0, said)  # type: ignore[arg-type]
    assert [word for word in said.queue if isinstance(word, str)] == ["Seed 0: ValueError: shapes that do not fit"]
    trace = capfd.readouterr().err
    assert "Traceback" in trace
    assert "in finish" in trace
