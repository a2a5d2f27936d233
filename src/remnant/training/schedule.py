"""How long a task trains, and at which learning rate: fixed epochs, or until the validation loss stops falling."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """`patience` epochs without a lower validation loss divide the rate by `factor`; below `lr_min` the task ends.

    The best model is put back at the end only, as in the published scripts. `patience=None`, or no
    validation set: all epochs, no stopping.
    """

    lr: float
    epochs: int
    batch: int
    evaluation_batch: int = 64
    patience: int | None = None
    factor: float = 2.0
    lr_min: float = 0.0


@dataclass
class Stopping:
    """Where early stopping stands."""

    lr: float
    best: float = float("inf")
    left: int = 0

    @classmethod
    def fresh(cls, schedule: Schedule) -> Stopping:
        return cls(lr=schedule.lr, left=schedule.patience or 0)

    def after(self, loss: float, schedule: Schedule) -> tuple[bool, bool]:
        """Takes an epoch's validation loss; says whether the model is the best so far, and whether training ends."""
        if schedule.patience is None:
            return False, False
        if loss < self.best:
            self.best, self.left = loss, schedule.patience
            return True, False
        self.left -= 1
        if self.left <= 0:
            self.lr /= schedule.factor
            self.left = schedule.patience
            return False, self.lr < schedule.lr_min
        return False, False
