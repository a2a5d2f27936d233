"""The training loop: epochs, learning rate and early stopping. It knows methods and tensors, but no bases and no files."""

from .cooperative import Blocking, RandomState, Work, run_to_completion
from .executor import EagerSteps, Executor, Steps, Validation, evaluate_method
from .trainer import EpochDone, Schedule, Trainer, TrainingState

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
