"""Masks with one bit per entry."""

import torch
from torch import Tensor


def packed(mask: Tensor) -> Tensor:
    """Returns the entries of a mask as bits, eight to a byte."""
    bits = torch.nn.functional.pad(mask.flatten().to(torch.uint8), (0, -mask.numel() % 8)).view(-1, 8)
    return (bits << _places(mask.device)).sum(1, dtype=torch.uint8)


def unpacked(bits: Tensor, count: int) -> Tensor:
    """Returns the first `count` bits as a mask of True and False."""
    return ((bits[:, None] >> _places(bits.device)) & 1).flatten()[:count].bool()


def _places(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)
