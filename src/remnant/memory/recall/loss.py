"""The loss that measures what recall costs: the user's function, or by default the usual loss for the batch's targets."""

from collections.abc import Callable, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor

Loss = Callable[[Any, Any], Tensor]  # (what the model returned, batch) → mean loss


def loss_of(recall: bool | Loss) -> Loss:
    """The loss to measure: the usual one, or the user's own."""
    if recall is not True and not callable(recall):
        raise TypeError(f"recall={recall!r}: pass True, or a function (model's output, batch) → loss.")
    return usual_loss if recall is True else recall


def usual_loss(output: Any, batch: Any) -> Tensor:
    """The loss that the model returns itself, cross-entropy for whole-number targets, or the mean squared error."""
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    if isinstance(batch, list | tuple) and len(batch) > 1 and isinstance(batch[1], Tensor):
        classes = not batch[1].is_floating_point()
        return F.cross_entropy(output, batch[1]) if classes else F.mse_loss(output, batch[1])
    raise ValueError(
        "recall=True measures a loss, but these batches have no targets. Pass recall=lambda output, batch: …"
    )
