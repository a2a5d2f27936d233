"""The loggers of `--log`: TensorBoard, Weights & Biases and MLflow. Each imports its library on first use."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from remnant.experiments.execute import Plan
from remnant.experiments.runs import RunFolder
from remnant.files import write


class Logger(Protocol):
    """The log of one seed."""

    def __init__(self, plan: Plan, seed: int, quiet: bool) -> None: ...

    def write(self, axis: str, step: int, numbers: Mapping[str, float]) -> None:
        """Writes the numbers of one step of an axis: "epoch" or "task"."""

    def close(self, finished: bool) -> None:
        """Ends the log. `finished` says whether the run reached its end."""


class TensorBoard:
    """Writes to the folder `tensorboard` of the run folder, so that `tensorboard --logdir runs` shows all runs."""

    def __init__(self, plan: Plan, seed: int, quiet: bool) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(_folder(plan, seed) / "tensorboard"))
        self._writer.add_text("settings", f"```json\n{json.dumps(_settings(plan, seed), indent=2)}\n```")

    def write(self, axis: str, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, finished: bool) -> None:
        self._writer.close()


class WeightsAndBiases:
    """Writes to the project `remnant`, or $WANDB_PROJECT. The seeds of one setting are a group."""

    def __init__(self, plan: Plan, seed: int, quiet: bool) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "remnant"),
            group=f"{plan.settings.benchmark} {plan.settings.method} {plan.settings.digest}",
            name=_title(plan, seed),
            config=_settings(plan, seed),
            id=_kept_id(plan, seed, "wandb", lambda: uuid4().hex),
            resume="allow",
            reinit="create_new",  # several seeds may run at the same time
            settings=wandb.Settings(quiet=True, silent=quiet),
        )
        self._run.define_metric("epoch/*", step_metric="epoch")
        self._run.define_metric("accuracy/*", step_metric="task")

    def write(self, axis: str, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log({axis: step, **numbers})

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=int(not finished))


class MLflow:
    """Writes to the experiment `remnant`, or $MLFLOW_EXPERIMENT_NAME, of the tracking server that MLflow uses."""

    def __init__(self, plan: Plan, seed: int, quiet: bool) -> None:
        from mlflow import MlflowClient, log_metrics

        self._client, self._log = MlflowClient(), log_metrics
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "remnant")
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        self._run = _kept_id(
            plan, seed, "mlflow", lambda: self._client.create_run(experiment, run_name=_title(plan, seed)).info.run_id
        )
        self._client.update_run(self._run, status="RUNNING")  # it has failed, if the run was interrupted
        for key, value in _settings(plan, seed).items():
            self._client.log_param(self._run, key, value)

    def write(self, axis: str, step: int, numbers: Mapping[str, float]) -> None:
        self._log(dict(numbers), step=step, run_id=self._run)

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if finished else "FAILED")


LOGGERS: dict[str, tuple[type[Logger], str]] = {  # each with the module that it needs
    "tensorboard": (TensorBoard, "torch.utils.tensorboard"),
    "wandb": (WeightsAndBiases, "wandb"),
    "mlflow": (MLflow, "mlflow"),
}


def _folder(plan: Plan, seed: int) -> Path:
    folder = RunFolder.find(plan.root, plan.settings, seed)
    assert folder is not None  # a run that reports progress has a folder
    return folder.path


def _kept_id(plan: Plan, seed: int, logger: str, make: Callable[[], str]) -> str:
    """The id of the log that this run began earlier, or a new one, which stays in the run folder for a resumed run."""
    file = _folder(plan, seed) / f"{logger}.id"
    if not file.is_file():
        write(file, make().encode())
    return file.read_text()


def _title(plan: Plan, seed: int) -> str:
    return f"{plan.settings.benchmark} {plan.settings.method} seed {seed}"


def _settings(plan: Plan, seed: int) -> dict[str, Any]:
    """The settings by the keys that `--set` takes."""
    found: dict[str, Any] = {"seed": seed}
    for name, value in plan.settings.as_dict().items():
        table = value if isinstance(value, dict) else {}
        prefix = "" if name == "options" else f"{name}."
        found |= {f"{prefix}{key}": each for key, each in table.items()} or ({} if value == {} else {name: value})
    return found
