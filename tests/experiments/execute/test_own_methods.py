"""A method of the user's own runs like the others, and mistakes in it are reported in time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from remnant.data import Split
from remnant.errors import RunError
from remnant.experiments import Plan, resolve, run
from remnant.experiments.execute import Progress, processes
from remnant.experiments.execute.launch import Job
from remnant.methods import METHODS, Method
from remnant.models import Network, build

FEW = ("stream.tasks=2", "training.epochs=1", "training.batch=20")
OWN = """
from remnant.methods import Method
from remnant.models import MLP

class Slow(Method):
    name = "slow"

    def __init__(self, network, *, share: float = 0.1, lr: float = 0.1) -> None:
        super().__init__(network, lr=lr)
        self.share = share

    def loss(self, x, y):
        return self.share * super().loss(x, y)

class Narrow(MLP):
    def __init__(self, input_shape, classes, *, width: int = 5) -> None:
        super().__init__(input_shape, classes, hidden=[width])
"""


class Own(Method):
    name = "own"

    def __init__(self, network: Network, *, lr: float = 0.1) -> None:
        super().__init__(network, lr=lr)
        self.kept: list[Tensor] = []
        self.keep("kept", self.kept)

    def finish(self, task: int, train: Split) -> None:
        self.kept.append(train.x[:10].clone())


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[Method]], None]:
    return lambda method: monkeypatch.setitem(METHODS, "own", method)  # type: ignore[arg-type]


def plan(root: Path, *overrides: str) -> Plan:
    return Plan(resolve("permuted-digits", "own", (*FEW, *overrides)), (0,), root, "cpu")


def test_a_method_and_a_network_from_a_file_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    chosen = (*FEW, "network=own.py:Narrow", "network.width=7")

    def matrix(method: str, *overrides: str) -> Any:
        settings = resolve("permuted-digits", method, (*chosen, *overrides))
        return run(Plan(settings, (0,), tmp_path, "cpu"))[0].matrix()

    assert matrix("own.py:Slow", "share=1") == matrix("finetune", "lr=0.1")
    assert matrix("own.py:Slow") != matrix("finetune", "lr=0.1")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("capacity = 'many'", r"Odd: `capacity` is 'many'\. It must be a number: the parameters in use"),
        (
            "def __init__(self, network, *, lr=0.1):\n        super().__init__(network, lr=lr)\n        self.keep('a', print)",
            r"Odd could not be built: TypeError: A state cannot hold state/a: a builtin.*\. Use tensors, .* and dicts\.$",
        ),
    ],
    ids=["a capacity that is no number", "a state that no file can hold"],
)
def test_what_could_not_be_saved_is_refused_before_the_first_task(tmp_path: Path, body: str, message: str) -> None:
    (tmp_path / "odd.py").write_text(f"from remnant.methods import Method\nclass Odd(Method):\n    {body}\n")
    settings = resolve("permuted-digits", f"{tmp_path / 'odd.py'}:Odd", FEW)
    with pytest.raises(RunError, match=message):
        run(Plan(settings, (0,), tmp_path / "runs", "cpu"))
    assert not list((tmp_path / "runs").rglob("seed0"))


def test_another_optimizer_changes_the_result(tmp_path: Path) -> None:
    def matrix(*overrides: str) -> Any:
        settings = resolve("permuted-digits", "finetune", (*FEW, "lr=0.001", *overrides))
        return run(Plan(settings, (0,), tmp_path, "cpu"))[0].matrix()

    assert matrix("optimizer=adamw") != matrix() != matrix("optimizer.momentum=0.9")


def test_a_start_that_forgets_the_task_is_refused(added: Callable[[type[Method]], None], tmp_path: Path) -> None:
    added(type("NoStart", (Own,), {"start": lambda self, task: None}))
    with pytest.raises(RunError, match=r"own: start\(task\) must call super\(\)\.start\(task\)"):
        run(plan(tmp_path))


def test_what_it_keeps_is_counted() -> None:
    method = Own(build("mlp", input_shape=(4,), classes=3, seed=1, hidden=(5,)), lr=0.1)
    assert method.nbytes == 0
    for task in range(2):
        method.finish(task, Split.of(torch.randn(20, 4), torch.zeros(20, dtype=torch.int64)))
    assert method.nbytes == 2 * 10 * 4 * 4


def test_early_stopping_without_a_validation_set_is_not_silent(
    added: Callable[[type[Method]], None], tmp_path: Path
) -> None:
    added(Own)
    stopping = ("training.patience=2", "training.factor=2", "training.lr_min=0.01")

    def notes(*overrides: str) -> list[str]:
        heard: list[Progress] = []
        run(plan(tmp_path, *overrides), heard.append)
        return [progress.note for progress in heard if progress.note]

    (note,) = notes("stream.valid=0.0", *stopping)
    assert note == "no early stopping: without a validation set (stream.valid), tasks train all epochs"
    assert notes("stream.valid=0.1", *stopping) == []
    assert notes("stream.valid=0.0") == []


def test_a_mistake_in_its_code_is_shown_in_full_also_beside_other_seeds(
    added: Callable[[type[Method]], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def finish(self: Method, task: int, train: Split) -> None:
        raise ValueError("shapes that do not fit")

    added(type("Broken", (Own,), {"finish": finish}))
    monkeypatch.setattr(processes, "_exit_with_parent", lambda: None)  # there is no parent process here
    messages: list[Any] = []
    sender = type("Sender", (), {"send": messages.append})
    asked = plan(tmp_path)
    processes._run_in_child(Job(asked, [asked.folder(0)]), torch.device("cpu"), sender)  # type: ignore[arg-type]
    errors = [message for message in messages if isinstance(message, str)]
    assert errors == ["Seed 0: ValueError: shapes that do not fit"]
    trace = capfd.readouterr().err
    assert "Traceback" in trace
    assert "in finish" in trace
