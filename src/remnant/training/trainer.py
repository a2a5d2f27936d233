"""Trains a method on one task."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from remnant.data import Task
from remnant.methods import Method

from .cooperative import Blocking, Work
from .schedule import Schedule, TrainingState
from .steps import Executor


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
    """Trains a method on one task after another.

    Args:
        schedule: the epochs, batches and learning rates of each task.
        executor: how to take steps and validate. The default takes plain steps; `remnant.accelerated.FastestExecutor`
            takes the same steps faster.
    """

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
        """Trains until the schedule ends. Yields while the device works (see `remnant.training.cooperative`).

        Args:
            method: the method to train; its `start(number)` was called before.
            number: the number of the task.
            task: the data, on the method's device.
            state: where to begin. It is updated after each epoch.
            on_epoch: called after each epoch. It may return a function to be called before the next epoch.
        """
        schedule = self.schedule
        state.begin(schedule)
        steps = yield from self.executor.steps(method, task.train, schedule.batch)
        valid = self.executor.validation(method, method.validation(number, task.valid), schedule.evaluation_batch)
        while state.epoch < schedule.epochs and not state.over:
            start, lr = time.perf_counter(), state.lr
            assert lr is not None
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
