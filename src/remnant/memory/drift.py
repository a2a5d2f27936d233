"""How far a network's layers have moved for the inputs of an old task: the paper's interference activation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .discovery import Selection, discover, unwrap
from .histogram import Histogram
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
    """Layer → the histogram of ΔW_{τ→T}·x_τ, every output of every row a value (Sec. 7, "Controlling Forgetting", Eq. 11).

    ΔW_{τ→T} = W_T − W_τ: what the weights are now, less what they were after task τ, a bias being the weight of an input
    that is always 1. x_τ: the layer's inputs for task τ's data, as the network of task τ saw them. They come from its
    weights, not from today's, so that a layer is not charged with what layers before it have moved.

    `before` is the model's state_dict after task τ, each batch the arguments of its forward, `layers` the names of those to
    look at (default: all that have a rule). A layer that no batch reaches is left out.
    """
    model = unwrap(model)
    now = dict([*model.named_parameters(), *model.named_buffers()])
    if missing := [name for name, _ in model.named_parameters() if name not in before]:
        raise ValueError(f"`before` has no {missing[0]!r}: it must be a state_dict of this model.")
    # Laid out as today's: the same numbers are then computed in the same way, wherever `before` was kept meanwhile.
    then = {name: torch.empty_like(tensor).copy_(before[name]) for name, tensor in now.items() if name in before}
    anchors = {now[name]: tensor for name, tensor in then.items()}
    found = discover(model, Selection(None, ()), bias="augment", norm="free", unsupported="free").weights
    weights = [weight for weight in found if layers is None or weight.name in layers]
    moved = {weight.name: _Moved(weight, weight.difference(anchors)) for weight in weights}
    record_rows(model, weights, moved, batches, lambda network, batch: functional_call(network, then, batch))
    return {name: each.histogram for name, each in moved.items() if each.heard}


class _Moved:
    """ΔW of one weight, and how often ΔW·x was how large over the rows x it is given."""

    def __init__(self, weight: ProtectedWeight, change: Tensor) -> None:
        self.one_hot, self.change = weight.view.one_hot, change
        self.histogram = Histogram()
        self.heard = False

    def add(self, rows: Tensor) -> None:
        self.heard = True
        with full_precision(self.change.device):
            self.histogram.add(self.change[0][:, rows] if self.one_hot else rows.to(self.change) @ self.change.mT)
