"""How well a stream was learned and kept. Everything here is a fraction in [0, 1]; only `percent` writes per cent."""

from .accuracy_matrix import AccuracyMatrix
from .evaluate import Evaluation, Loss, Pending, Split, evaluate, queue_evaluation, sum_up
from .metrics import (
    Baseline,
    ForwardTransfer,
    average_accuracy,
    average_forgetting,
    backward_transfer,
    forward_transfer,
    learning_accuracy,
)
from .summary import Summary, percent, summarize

__all__ = [
    "AccuracyMatrix",
    "Baseline",
    "Evaluation",
    "ForwardTransfer",
    "Loss",
    "Pending",
    "Split",
    "Summary",
    "average_accuracy",
    "average_forgetting",
    "backward_transfer",
    "evaluate",
    "forward_transfer",
    "learning_accuracy",
    "percent",
    "queue_evaluation",
    "sum_up",
    "summarize",
]
