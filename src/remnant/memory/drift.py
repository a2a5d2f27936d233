"""How far a network's layers have moved for the inputs of an old task: the paper's interference activation."""

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .discovery import discover, unwrap
from .histogram import Histogram
from .patterns import Selection
from .precision import full_precision
from .protected import ProtectedWeight
from .record.recorder import record_rows


@torch.no_grad()
def activation_drift(
    model: nn.Module,
    before: Mapping[str, Tensor],
    batches: Iterable[tuple[object, ...]],
    layers: Collection[str] | None = None,
) -> dict[str, Histogram]:
    """Measures ΔW_{τ→T}·x_τ, the change of each layer's outputs for an old task's inputs (Eq. 11).

    ΔW_{τ→T} = W_T − W_τ is the change of the weights since task τ; a bias counts as the weight of an input of 1. x_τ are the
    layer's inputs in the network of task τ, so that a layer is not blamed for the changes of the layers before it.

    `before` is the model's state_dict after task τ. Each batch of task τ's data is a tuple of arguments for the model.
    Returns layer → histogram, with one value per row and output, for the named layers or all; without those that no batch
    reaches.
    """
    model = unwrap(model)
    now = dict([*model.named_parameters(), *model.named_buffers()])
    if missing := [name for name, _ in model.named_parameters() if name not in before]:
        raise ValueError(f"`before` has no {missing[0]!r}: it must be a state_dict of this model.")
    # Copies with today's memory layout, so that equal numbers are computed in the same way.
    then = {name: torch.empty_like(tensor).copy_(before[name]) for name, tensor in now.items() if name in before}
    anchors = {now[name]: tensor for name, tensor in then.items()}
    found = discover(model, Selection(None, ()), bias="augment", norm="free", unsupported="free").weights
    weights = [weight for weight in found if layers is None or weight.name in layers]
    changes = {weight.name: _OutputChanges(weight, weight.difference(anchors)) for weight in weights}
    record_rows(model, weights, changes, batches, lambda network, batch: functional_call(network, then, batch))
    return {name: change.histogram for name, change in changes.items() if change.reached}


class _OutputChanges:
    """Counts the values of ΔW·x over the rows x that it receives."""

    def __init__(self, weight: ProtectedWeight, change: Tensor) -> None:
        self.one_hot, self.change = weight.view.one_hot, change
        self.histogram = Histogram()
        self.reached = False

    def add(self, rows: Tensor) -> None:
        self.reached = True
        with full_precision(self.change.device):
            self.histogram.add(self.change[0][:, rows] if self.one_hot else rows.to(self.change) @ self.change.mT)
