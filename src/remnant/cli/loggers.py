"""The loggers of `--log`: TensorBoard, Weights & Biases and MLflow. Each imports its library on first use."""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from uuid import uuid4

from remnant.experiments.runs import RunFolder
from remnant.files import write


class Logger(Protocol):
    """The log of one seed."""

    def __init__(self, folder: RunFolder, quiet: bool) -> None: ...

    def write(self, axis: str, step: int, numbers: Mapping[str, float]) -> None:
        """Writes the numbers of one step of an axis: "epoch" or "task"."""

    def close(self, finished: bool) -> None:
        """Ends the log. `finished` says whether the run reached its end."""


class TensorBoard:
    """Writes to the folder `tensorboard` of the run folder, so that `tensorboard --logdir runs` shows all runs."""

    def __init__(self, folder: RunFolder, quiet: bool) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder.path / "tensorboard"))
        self._writer.add_text("settings", f"```json\n{json.dumps(_settings(folder), indent=2)}\n```")

    def write(self, axis: str, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, finished: bool) -> None:
        self._writer.close()


class WeightsAndBiases:
    """Writes to the project `remnant`, or $WANDB_PROJECT. The seeds of one setting are a group."""

    def __init__(self, folder: RunFolder, quiet: bool) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "remnant"),
            group=f"{folder.benchmark} {folder.method} {folder.digest}",
            name=_title(folder),
            config=_settings(folder),
            id=_kept_id(folder, "wandb", lambda: uuid4().hex),
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

    def __init__(self, folder: RunFolder, quiet: bool) -> None:
        from mlflow import MlflowClient, log_metrics

        self._client, self._log = MlflowClient(), log_metrics
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "remnant")
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        create = self._client.create_run
        self._run = _kept_id(folder, "mlflow", lambda: create(experiment, run_name=_title(folder)).info.run_id)
        self._client.update_run(self._run, status="RUNNING")  # a run that was interrupted is marked as failed
        for key, value in _settings(folder).items():
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


def _kept_id(folder: RunFolder, logger: str, make: Callable[[], str]) -> str:
    """Returns the id of the log that this run began earlier, or a new id, which the run folder keeps for a resumed run."""
    file = folder.path / f"{logger}.id"
    if not file.is_file():
        write(file, make().encode())
    return file.read_text()


def _title(folder: RunFolder) -> str:
    return f"{folder.benchmark} {folder.method} seed {folder.seed}"


def _settings(folder: RunFolder) -> dict[str, Any]:
    """The settings by the keys that `--set` takes."""
    found: dict[str, Any] = {"seed": folder.seed}
    for name, value in folder.settings.items():
        if isinstance(value, dict):
            found |= {key if name == "options" else f"{name}.{key}": each for key, each in value.items()}
        else:
            found[name] = value
    return found
