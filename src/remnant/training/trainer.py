"""Trains a method on one task. A fit is a generator: it queues work, then lets others go."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from remnant.data import Task
from remnant.methods import Method

from . import by_hand, fused
from .by_hand import HandwrittenSteps
from .evaluation import Validation
from .fused import FusedSteps
from .schedule import Schedule, Stopping
from .steps import CapturedSteps, EagerSteps
from .work import Start, Steps, Work

STEPS = ("auto", "captured", "eager")  # how steps are taken: the fastest way there is; at most recorded; one by one


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

    def __init__(self, schedule: Schedule, *, steps: str = "auto") -> None:
        self.schedule = schedule
        self.steps = steps
        self.fallback: str | None = None  # why it is slower than it could have been

    def fit(
        self,
        method: Method,
        number: int,
        task: Task,
        state: TrainingState,
        on_epoch: Callable[[EpochDone, TrainingState], Start | None],
    ) -> Work:
        """Trains until the schedule ends, from where `state` stands. Yields while the device works.

        `on_epoch` hears of every epoch; what it returns is called before the next one begins, as `Work` says.
        """
        schedule = self.schedule
        stopping = state.stopping = state.stopping or Stopping.fresh(schedule)
        steps = yield from self.steps_of(method, task)
        valid = self._validation(method, number, task, steps)
        while state.epoch < schedule.epochs and not state.over:
            start = time.perf_counter()
            method.lr.fill_(stopping.lr)
            method.network.train()
            method.pace(state.epoch, schedule.epochs, steps.count)
            yield from steps.epoch()
            method.settle()
            loss = steps.loss.clone()
            lr, valid_loss, accuracy = stopping.lr, float("nan"), float("nan")
            if len(valid):  # without a validation set there is nothing to stop by: all epochs
                valid_loss, accuracy = yield from valid.measure()
                self.fallback = self.fallback or valid.fallback
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

    def _validation(self, method: Method, number: int, task: Task, steps: Steps) -> Validation:
        """Recorded where steps are: if those could not be, there is no use in trying."""
        record = method.device.type == "cuda" and not isinstance(steps, EagerSteps)
        return Validation(method, method.validation(number, task.valid), self.schedule.evaluation_batch, record=record)

    def steps_of(self, method: Method, task: Task) -> Generator[Start | None, None, Steps]:
        """The fastest there are, ready to go. Yields where others may go meanwhile."""
        batch = self.schedule.batch
        if self.steps == "auto" and fused.fits(method, batch):
            fused_steps = FusedSteps(method, task.train, batch)
            yield fused_steps.compile
            if fused_steps.missing is None:
                return fused_steps
            self.fallback = f"an epoch is not one kernel: {fused_steps.missing}"
        if self.steps == "auto" and by_hand.fits(method):
            return HandwrittenSteps(method, task.train, batch)
        if self.steps != "eager" and task.train.x.device.type == "cuda":
            try:
                steps = CapturedSteps(method, task.train, batch)
                yield from steps.record()
                return steps
            except RuntimeError as error:
                self.fallback = f"steps are not captured: {str(error).splitlines()[0]}"
                self.steps = "eager"  # for the tasks to come as well: a capture that fails keeps its memory
        return EagerSteps(method, task.train, batch)
