"""The training loop: epochs, learning rate and early stopping. It deals with methods and tensors, not with bases or files."""

from .cooperative import Blocking, RandomState, Work, run_to_completion
from .trainer import (
    EagerSteps,
    EpochDone,
    Schedule,
    Steps,
    Trainer,
    TrainingState,
    Validation,
    arrival,
    evaluate_method,
    shuffled,
)

__all__ = [
    "Blocking",
    "EagerSteps",
    "EpochDone",
    "RandomState",
    "Schedule",
    "Steps",
    "Trainer",
    "TrainingState",
    "Validation",
    "Work",
    "arrival",
    "evaluate_method",
    "run_to_completion",
    "shuffled",
]
