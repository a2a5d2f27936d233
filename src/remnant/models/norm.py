"""The two ways in which a network may normalise."""

from dataclasses import replace
from typing import Annotated, Literal

from torch import nn

from remnant.options import choice

KIND = replace(
    choice(("running", "batch")), words="'running' (also if the memory is to freeze its statistics) or 'batch'"
)
Norm = Annotated[Literal["running", "batch"], KIND]
"""`running`: ordinary batch normalisation, so the logits of a test example depend on that example alone.

`batch`: training and test use the statistics of the current batch. The accuracy then depends on the test batches. The
paper's tables were made this way.
"""


def norm_1d(features: int, norm: Norm) -> nn.BatchNorm1d:
    return nn.BatchNorm1d(features, track_running_stats=_tracks(norm))


def norm_2d(channels: int, norm: Norm) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, track_running_stats=_tracks(norm))


def _tracks(norm: Norm) -> bool:
    return bool(KIND.check("norm", norm, f"norm={norm!r}") == "running")
