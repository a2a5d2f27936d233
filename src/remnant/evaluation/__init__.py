"""How well a stream was learned and kept. Every number here is a fraction in [0, 1], never a percentage."""

from .evaluate import Evaluation, Examples, Loss, PendingEvaluation, evaluate, evaluation_sums
from .metrics import (
    AccuracyMatrix,
    average_accuracy,
    average_forgetting,
    backward_transfer,
    forward_transfer,
    learning_accuracy,
)
from .spread import NO_VALUE, Spread

__all__ = [
    "NO_VALUE",
    "AccuracyMatrix",
    "Evaluation",
    "Examples",
    "Loss",
    "PendingEvaluation",
    "Spread",
    "average_accuracy",
    "average_forgetting",
    "backward_transfer",
    "evaluate",
    "evaluation_sums",
    "forward_transfer",
    "learning_accuracy",
]
