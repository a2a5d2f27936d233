"""Trains a method on one task: epochs, learning rate and early stopping."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

import torch
from torch import Tensor, nn

from remnant.data import Task
from remnant.methods import Method
from remnant.options import Positive, number

from .cooperative import Blocking, Work
from .executor import Executor


@dataclass(frozen=True)
class Schedule:
    """The epochs, batches and learning rates of one task.

    Without `patience`, or without a validation set, a task trains all epochs at one rate. With it, `patience` epochs
    without a lower validation loss divide the rate by `factor`, and the task ends once the rate is below `lr_min`. Only
    then is the best model restored, as in the published scripts.
    """

    lr: float
    epochs: Positive
    batch: Positive
    evaluation_batch: Positive = 64
    patience: Positive | None = None
    factor: Annotated[float, number(1, 1000, above=True)] = 2.0
    lr_min: Annotated[float, number(0, 10, above=True)] = 0.0


@dataclass
class TrainingState:
    """The progress of a task between two epochs. A resumed fit needs this and the method's own state."""

    epoch: int = 0
    lr: float | None = None  # the current rate, once training has begun
    best_loss: float = math.inf
    patience: int = 0  # epochs left before the rate falls
    best: dict[str, Tensor] = field(default_factory=dict)  # the best model's state
    over: bool = False

    def update(self, loss: float, network: nn.Module, schedule: Schedule) -> None:
        """Applies early stopping after an epoch with this validation loss."""
        if schedule.patience is None or self.lr is None:
            return
        if loss < self.best_loss:
            self.best_loss, self.patience = loss, schedule.patience
            self.best = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
            return
        self.patience -= 1
        if self.patience <= 0:
            self.lr /= schedule.factor
            self.patience = schedule.patience
            self.over = self.lr < schedule.lr_min

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_state(cls, state: dict[str, Any], device: torch.device) -> Self:
        return cls(**{**state, "best": {name: tensor.to(device) for name, tensor in state["best"].items()}})


@dataclass(frozen=True)
class EpochDone:
    """The figures of one epoch. Without a validation set `valid_loss` and `valid_accuracy` are NaN."""

    task: int
    epoch: int
    epochs: int
    loss: float
    valid_loss: float
    valid_accuracy: float
    lr: float
    steps: int
    seconds: float


class Trainer:
    """Trains a method on one task after another. `remnant.accelerated.FastestExecutor` makes it faster."""

    def __init__(self, schedule: Schedule, executor: Executor | None = None) -> None:
        self.schedule = schedule
        self.executor = executor or Executor()

    @property
    def fallback(self) -> str | None:
        """Why training is slower than it could be, or None."""
        return self.executor.fallback

    def fit(
        self,
        method: Method,
        number: int,
        task: Task,
        state: TrainingState,
        on_epoch: Callable[[EpochDone, TrainingState], Blocking | None],
    ) -> Work[None]:
        """Trains on task `number`, for which the method has started, until the schedule ends.

        It begins at `state` and updates it after each epoch, before it calls `on_epoch`.
        """
        schedule = self.schedule
        if state.lr is None:
            state.lr, state.patience = schedule.lr, schedule.patience or 0
        steps = yield from self.executor.steps(method, task.train, schedule.batch)
        valid = self.executor.validation(method, method.validation(number, task.valid), schedule.evaluation_batch)
        while state.epoch < schedule.epochs and not state.over:
            start, lr = time.perf_counter(), state.lr
            method.lr.fill_(lr)
            method.network.train()
            method.on_epoch_start(state.epoch, schedule.epochs, steps.count)
            yield from steps.epoch()
            method.on_epoch_end()
            loss = steps.loss.clone()
            measured = math.nan, math.nan
            if len(valid):
                measured = yield from valid.measure()
                self.executor.fallback = self.executor.fallback or valid.fallback
                state.update(measured[0], method.network, schedule)
            state.epoch += 1
            mean_loss, seconds = float(loss) / steps.count, time.perf_counter() - start
            done = EpochDone(number, state.epoch, schedule.epochs, mean_loss, *measured, lr, steps.count, seconds)
            yield on_epoch(done, state)
        if state.best:
            method.network.load_state_dict(state.best)
