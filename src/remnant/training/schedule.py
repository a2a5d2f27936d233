"""How long a task trains, and at which learning rate: fixed epochs, or until the validation loss stops falling."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from remnant.options import Positive, number


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

    def begin(self, schedule: Schedule) -> None:
        """Sets the rate and the patience unless training has begun before."""
        if self.lr is None:
            self.lr, self.patience = schedule.lr, schedule.patience or 0

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
    def from_state(cls, state: dict[str, Any], device: torch.device) -> TrainingState:
        return cls(**{**state, "best": {name: tensor.to(device) for name, tensor in state["best"].items()}})
