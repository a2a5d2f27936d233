"""The loop: epochs and early stopping. It knows methods, never bases; tensors, never files."""

from .cooperative import Blocking, Steps, Work, at_once, rows_seen
from .evaluation import Validation, evaluate_in_turns
from .random import RandomState
from .schedule import Schedule
from .steps import EagerSteps, Plain, Ways
from .trainer import EpochDone, Trainer, TrainingState

__all__ = [
    "Blocking",
    "EagerSteps",
    "EpochDone",
    "Plain",
    "RandomState",
    "Schedule",
    "Steps",
    "Trainer",
    "TrainingState",
    "Validation",
    "Ways",
    "Work",
    "at_once",
    "evaluate_in_turns",
    "rows_seen",
]
