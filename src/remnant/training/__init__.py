"""The loop: epochs, early stopping, captured steps. It knows methods, never bases; tensors, never files."""

from .evaluation import evaluate_in_turns
from .random import RandomState
from .schedule import Schedule
from .trainer import STEPS, EpochDone, Trainer, TrainingState
from .work import Start, Work, at_once

__all__ = [
    "STEPS",
    "EpochDone",
    "RandomState",
    "Schedule",
    "Start",
    "Trainer",
    "TrainingState",
    "Work",
    "at_once",
    "evaluate_in_turns",
]
