"""Mixup (Zhang et al., 2018): examples between two examples, with labels between their labels."""

import torch
from torch import Tensor


def mixed(x: Tensor, y: Tensor, share: Tensor, classes: int, *, labels_swapped: bool = False) -> tuple[Tensor, Tensor]:
    """Returns s·x + (1 − s)·x' and s·y + (1 − s)·y', as soft labels. x' is the example before x in the batch.

    Args:
        x: The examples, in random order.
        y: Their labels.
        share: s of each example. The results have a gradient for it.
        classes: The number of classes.
        labels_swapped: Whether the labels have 1 − s in the place of s.
    """
    labels = torch.eye(classes, dtype=x.dtype, device=x.device)[y]
    of_label = (1 - share if labels_swapped else share)[:, None]
    of_pixel = share.view(-1, *(1 for _ in x.shape[1:]))
    return (
        of_pixel * x + (1 - of_pixel) * x.roll(1, 0),
        of_label * labels + (1 - of_label) * labels.roll(1, 0),
    )
