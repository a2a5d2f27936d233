"""The training loop: epochs, learning rate and early stopping. It knows methods and tensors, but no bases and no files."""

from .cooperative import Blocking, Work, run_to_completion
from .random import RandomState
from .schedule import Schedule, TrainingState
from .steps import EagerSteps, Executor, Steps
from .trainer import EpochDone, Trainer
from .validation import Validation, evaluate_method

__all__ = [
    "Blocking",
    "EagerSteps",
    "EpochDone",
    "Executor",
    "RandomState",
    "Schedule",
    "Steps",
    "Trainer",
    "TrainingState",
    "Validation",
    "Work",
    "evaluate_method",
    "run_to_completion",
]
