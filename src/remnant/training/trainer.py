"""Trains a method on one task. A fit is a generator: it queues work, then lets others go."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from remnant.data import Task
from remnant.methods import Method

from .cooperative import Blocking, Work
from .schedule import Schedule, Stopping
from .steps import Plain, Ways


@dataclass(frozen=True)
class EpochDone:
    """What is known after an epoch; `valid_*` are NaN where there is no validation set."""

    task: int
    epoch: int
    epochs: int
    loss: float
    valid_loss: float
    valid_accuracy: float
    lr: float
    steps: int
    seconds: float


@dataclass
class TrainingState:
    """Where a task stands between two epochs; all that a resumed fit needs beside the method's own state."""

    epoch: int = 0
    stopping: Stopping | None = None
    best: dict[str, Tensor] = field(default_factory=dict)
    over: bool = False

    def state_dict(self) -> dict[str, Any]:
        stopping = self.stopping and vars(self.stopping)
        return {"epoch": self.epoch, "stopping": stopping, "best": self.best, "over": self.over}

    @classmethod
    def from_state(cls, state: dict[str, Any], device: torch.device) -> TrainingState:
        stopping = state["stopping"] and Stopping(**state["stopping"])
        best = {name: tensor.to(device) for name, tensor in state["best"].items()}
        return cls(state["epoch"], stopping, best, state["over"])


class Trainer:
    """Epochs over one task's training data, on the device the data is on."""

    def __init__(self, schedule: Schedule, ways: Ways | None = None) -> None:
        """`ways`: how to take steps and to validate; plainly, unless `remnant.accelerated` is given."""
        self.schedule = schedule
        self.ways = ways or Plain()

    @property
    def fallback(self) -> str | None:
        """Why it is slower than it could have been."""
        return self.ways.fallback

    def fit(
        self,
        method: Method,
        number: int,
        task: Task,
        state: TrainingState,
        on_epoch: Callable[[EpochDone, TrainingState], Blocking | None],
    ) -> Work:
        """Trains until the schedule ends, from where `state` stands. Yields while the device works.

        `on_epoch` hears of every epoch; what it returns is called before the next one begins, as `Work` says.
        """
        schedule = self.schedule
        stopping = state.stopping = state.stopping or Stopping.fresh(schedule)
        steps = yield from self.ways.steps(method, task.train, schedule.batch)
        valid = self.ways.validation(method, method.validation(number, task.valid), schedule.evaluation_batch)
        while state.epoch < schedule.epochs and not state.over:
            start = time.perf_counter()
            method.lr.fill_(stopping.lr)
            method.network.train()
            method.on_epoch_start(state.epoch, schedule.epochs, steps.count)
            yield from steps.epoch()
            method.on_epoch_end()
            loss = steps.loss.clone()
            lr, valid_loss, accuracy = stopping.lr, float("nan"), float("nan")
            if len(valid):  # without a validation set there is nothing to stop by: all epochs
                valid_loss, accuracy = yield from valid.measure()
                self.ways.fallback = self.ways.fallback or valid.fallback
                best, state.over = stopping.after(valid_loss, schedule)
                if best:
                    state.best = {name: tensor.detach().clone() for name, tensor in method.network.state_dict().items()}
            state.epoch += 1
            done = EpochDone(
                task=number,
                epoch=state.epoch,
                epochs=schedule.epochs,
                loss=float(loss) / steps.count,
                valid_loss=valid_loss,
                valid_accuracy=accuracy,
                lr=lr,
                steps=steps.count,
                seconds=time.perf_counter() - start,
            )
            yield on_epoch(done, state)
        if state.best:
            method.network.load_state_dict(state.best)
