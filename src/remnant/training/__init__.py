"""The loop: epochs, early stopping, captured steps. It knows methods, never bases; tensors, never files."""

from .random import RandomState
from .schedule import Schedule
from .trainer import STEPS, EpochDone, Trainer, TrainingState, queue
from .work import Work

__all__ = ["STEPS", "EpochDone", "RandomState", "Schedule", "Trainer", "TrainingState", "Work", "queue"]
