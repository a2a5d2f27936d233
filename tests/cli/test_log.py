"""`--log` writes the numbers of each seed to a logger, each tried with its real library where that is installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from remnant.cli import app
from remnant.cli.log import log_to
from remnant.cli.loggers import LOGGERS
from remnant.errors import UserError
from remnant.experiments.execute import Plan, Progress
from remnant.experiments.runs import RunFolder
from remnant.experiments.settings import resolve
from remnant.training import EpochDone

EPOCH = EpochDone(
    task=1, epoch=2, epochs=3, loss=0.5, valid_loss=float("nan"), valid_accuracy=0.9, lr=0.1, steps=10, seconds=0.1
)
FEW = ["--set", "stream.tasks=2", "--set", "training.epochs=2", "--set", "training.batch=20", "--device", "cpu", "-q"]


class Recorded:
    """A logger that keeps what it is told."""

    told: list[object]
    broken = False

    def __init__(self, folder: RunFolder, quiet: bool) -> None:
        self.seed = folder.seed
        self.told.append(("start", folder.seed))

    def write(self, axis: str, step: int, numbers: Mapping[str, float]) -> None:
        if self.broken:
            raise ConnectionError("the server is gone")
        self.told.append((self.seed, axis, step, dict(numbers)))

    def close(self, finished: bool) -> None:
        self.told.append(("end", self.seed, finished))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    monkeypatch.setattr(Recorded, "told", [], raising=False)
    monkeypatch.setitem(LOGGERS, "recorded", (Recorded, "json"))
    return Recorded.told


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return Plan(resolve("permuted-digits", "gpm"), (0, 1), tmp_path)


def test_steps_count_over_all_tasks_and_missing_numbers_are_left_out(plan: Plan, told: list[object]) -> None:
    with log_to("recorded", plan, quiet=False) as watch:
        watch(Progress(1, note="already finished"))  # no run of this seed is under way
        watch(Progress(0, task=1, tasks=2, epoch=EPOCH))
        watch(Progress(0, task=1, tasks=2, row=(0.5, 1.0)))
    assert told == [
        ("start", 0),
        (0, "epoch", 5, {"epoch/loss": 0.5, "epoch/valid_accuracy": 0.9, "epoch/lr": 0.1}),
        (0, "task", 2, {"accuracy/task1": 0.5, "accuracy/task2": 1.0, "accuracy/mean": 0.75}),
        ("end", 0, False),
    ]


def test_a_log_ends_with_its_run_or_with_its_failure(plan: Plan, told: list[object]) -> None:
    with pytest.raises(KeyboardInterrupt), log_to("recorded", plan, quiet=False) as watch:  # noqa: PT012
        watch(Progress(0, task=1, tasks=2, finished=True))
        watch(Progress(1, task=0, tasks=2))
        assert ("end", 0, True) in told
        raise KeyboardInterrupt
    assert told == [("start", 0), ("end", 0, True), ("start", 1), ("end", 1, False)]


def test_a_broken_logger_ends_the_logging_and_not_the_run(
    plan: Plan, told: list[object], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Recorded, "broken", True)
    with log_to("recorded", plan, quiet=True) as watch:
        for task in (0, 1):
            watch(Progress(0, task=task, tasks=2, epoch=replace(EPOCH, task=task)))
    assert capfd.readouterr().err.count("--log recorded stopped: ConnectionError: the server is gone") == 1


def test_a_missing_library_is_named_before_the_run(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "missing_library").mkdir()  # as wandb leaves a folder wandb, which Python would import
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("missing_library", "another_missing_library"):
        monkeypatch.setitem(LOGGERS, "missing", (Recorded, module))
        with pytest.raises(UserError, match="--log missing needs a package: pip install missing"):
            log_to("missing", plan, quiet=True).__enter__()
    with pytest.raises(UserError, match=r"--log csv: there is no such logger. Choose from: tensorboard, wandb, mlflow"):
        log_to("csv", plan, quiet=True).__enter__()


def library(name: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[object, ...], dict[str, Any]]]:
    """Puts a module in place that accepts and records any call. Its runs have new numbers."""
    calls: list[tuple[str, tuple[object, ...], dict[str, Any]]] = []
    numbers = count()

    class Recorder:
        def __getattr__(self, function: str) -> Callable[..., Any]:
            def call(*given: object, **named: object) -> Any:
                calls.append((function, given, named))
                run = SimpleNamespace(info=SimpleNamespace(run_id=f"run {next(numbers)}"))
                return run if function == "create_run" else self

            return call

    recorder = Recorder()
    functions = {each: getattr(recorder, each) for each in ("init", "Settings", "log_metrics")}
    module = SimpleNamespace(__file__="here", MlflowClient=Recorder, **functions)
    monkeypatch.setitem(sys.modules, name, module)
    return calls


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_resumed_run_continues_its_log(name: str, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = library(name, monkeypatch)
    logs = []
    for seed in (0, 0, 1):
        plan.folder(seed)
        with log_to(name, plan, quiet=False) as watch:  # it is interrupted
            watch(Progress(seed, task=1, tasks=2, epoch=EPOCH))
        if name == "wandb":
            (started,) = [named for function, _, named in calls if function == "init"]
            assert started["resume"] == "allow"
            logs.append(started["id"])
        else:
            (written,) = [named["run_id"] for function, _, named in calls if function == "log_metrics"]
            (reopened,) = [(given, named) for function, given, named in calls if function == "update_run"]
            assert reopened == ((written,), {"status": "RUNNING"})
            logs.append(written)
        calls.clear()
    assert logs[0] == logs[1] != logs[2]


# --- the real libraries -----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The libraries write into this folder only, and report to nobody."""
    quiet = {"DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}
    for name, value in {"HOME": str(tmp_path), **quiet}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def logged(name: str) -> None:
    result = CliRunner().invoke(app, ["run", "permuted-digits", "finetune", *FEW, "--log", name])
    assert result.exit_code == 0, result.output
    assert type(result.exit_code) is int  # wandb reads it, and fails on True and False
    assert "stopped" not in result.output


def test_tensorboard(folder: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logged("tensorboard")
    (events,) = (folder / "runs").glob("*/*/*/seed0/tensorboard")
    found = EventAccumulator(str(events)).Reload()
    assert [scalar.step for scalar in found.Scalars("epoch/loss")] == [1, 2, 3, 4]
    assert [scalar.step for scalar in found.Scalars("accuracy/task1")] == [1, 2]
    assert [scalar.step for scalar in found.Scalars("accuracy/task2")] == [2]


def test_weights_and_biases(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb.sdk")
    monkeypatch.setenv("WANDB_MODE", "offline")
    logged("wandb")
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    content = file.read_bytes()
    for word in (b"epoch/loss", b"accuracy/task2", b"permuted-digits finetune seed 0", b"training.epochs"):
        assert word in content


def test_mlflow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
    logged("mlflow")
    client = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("remnant").experiment_id])
    assert (run.info.run_name, run.info.status) == ("permuted-digits finetune seed 0", "FINISHED")
    assert (run.data.params["training.epochs"], run.data.params["lr"]) == ("2", "0.05")
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "epoch/loss")] == [1, 2, 3, 4]
    assert run.data.metrics.keys() >= {"accuracy/task1", "accuracy/task2", "accuracy/mean"}
