"""The loop: epochs, early stopping, captured steps. It knows methods, never bases; tensors, never files."""

from .random import RandomState
from .schedule import Schedule
from .trainer import EpochDone, Trainer, TrainingState, queue
from .work import Work

__all__ = ["EpochDone", "RandomState", "Schedule", "Trainer", "TrainingState", "Work", "queue"]
