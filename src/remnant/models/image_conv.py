"""The first convolution of a network for images in colour."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class ImageConv(nn.Conv2d):
    """A convolution. On a GPU it gives three channels a fourth, of zeros, which changes nothing but the time it takes.

    Tensor cores read channels by four; of three, the library's kernels took an eighth of an AlexNet step.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if input.is_cuda and self.in_channels == 3:
            input, weight = (F.pad(tensor, (0, 0, 0, 0, 0, 1)) for tensor in (input, weight))
        made: Tensor = super()._conv_forward(input, weight, bias)
        return made
