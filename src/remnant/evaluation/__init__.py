"""How well a stream was learned and kept. Every number here is a fraction in [0, 1], never a percentage."""

from .evaluate import Evaluation, Examples, Loss, evaluate, task_sums
from .metrics import (
    NO_VALUE,
    AccuracyMatrix,
    Spread,
    average_accuracy,
    average_forgetting,
    backward_transfer,
    forward_transfer,
    learning_accuracy,
)

__all__ = [
    "NO_VALUE",
    "AccuracyMatrix",
    "Evaluation",
    "Examples",
    "Loss",
    "Spread",
    "average_accuracy",
    "average_forgetting",
    "backward_transfer",
    "evaluate",
    "forward_transfer",
    "learning_accuracy",
    "task_sums",
]
