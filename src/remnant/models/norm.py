"""The two ways a network may normalise, behind one word."""

from typing import Literal, get_args

from torch import nn

from .names import no_such

Norm = Literal["running", "batch"]


def _keeps_running_statistics(norm: str) -> bool:
    """`running`: ordinary batch normalisation, so a test example's logits depend on that example alone.

    `batch`: no running statistics; training and test alike use those of the batch at hand. It makes accuracy depend on
    the test batch, and it is what the paper's tables were made with.
    """
    if norm not in get_args(Norm):
        message = no_such("norm", norm, get_args(Norm))
        if norm == "frozen":
            message += " Freezing is what the memory does after the first task; build with norm='running' for it."
        raise ValueError(message)
    return norm == "running"


def norm_1d(features: int, norm: Norm) -> nn.BatchNorm1d:
    return nn.BatchNorm1d(features, track_running_stats=_keeps_running_statistics(norm))


def norm_2d(channels: int, norm: Norm) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, track_running_stats=_keeps_running_statistics(norm))
