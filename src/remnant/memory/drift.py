"""How far a network's layers have moved for the inputs of an old task: the paper's interference activation."""

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from math import isfinite

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from .record.recorder import record_rows
from .subspaces.projection import full_precision
from .weights.discovery import Protection
from .weights.protected import ProtectedWeight

HALF = 128  # bins on either side of zero; an even number
SMALLEST = -20  # the finest range is ±2^SMALLEST; smaller values are rounding of float32


class Histogram:
    """Counts in 2·HALF equal bins over [−R, R), where R is the smallest power of two above every |value|."""

    def __init__(self) -> None:
        self._width = 2.0**SMALLEST / HALF  # a power of two, so the counts are exact and do not depend on the batches
        self._counts = torch.zeros(2 * HALF, dtype=torch.int64, device="cpu")

    def add(self, values: Tensor) -> None:
        if not values.numel():
            return
        largest = float(values.abs().max())
        if not isfinite(largest):
            raise ValueError("a value is NaN or inf")
        while largest >= HALF * self._width:
            # Two neighbours become one bin of a range that is twice as wide.
            merged = self._counts.view(-1, 2).sum(dim=1)
            self._counts = F.pad(merged, (HALF // 2, HALF // 2))
            self._width *= 2
        # In float64, the division turns no value into zero.
        bins = (values.detach().flatten().double() / self._width).floor().long() + HALF
        self._counts += torch.bincount(bins, minlength=2 * HALF).cpu()

    @property
    def edges(self) -> list[float]:
        return [number * self._width for number in range(-HALF, HALF + 1)]

    @property
    def counts(self) -> list[int]:
        return self._counts.tolist()


@torch.no_grad()
def activation_drift(
    model: nn.Module,
    before: Mapping[str, Tensor],
    batches: Iterable[tuple[object, ...]],
    layers: Collection[str] | None = None,
) -> dict[str, Histogram]:
    """Measures the interference activation (W_T − W_τ)·x_τ of each layer (the text below Eq. 11) as a histogram.

    W_T − W_τ is the change of the layer's weights since task τ; a bias counts as the weight of an input of 1. x_τ are the
    layer's inputs in the network of task τ, so that changes of earlier layers do not count.

    Args:
        model: The network after task T.
        before: Its state_dict after task τ.
        batches: Batches of task τ, each a tuple of arguments for the model.
        layers: The names of the layers to measure; all protected ones by default.

    Returns:
        For each layer, a histogram with `edges` and `counts`.

    Raises:
        ValueError: If a parameter is missing in `before`.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 2))
        >>> found = activation_drift(model, model.state_dict(), [(torch.ones(3, 4),)])
        >>> sum(found["0"].counts)  # three examples, two outputs
        6
    """
    protection = Protection(model)
    model = protection.model
    now = dict([*model.named_parameters(), *model.named_buffers()])
    if missing := [name for name, _ in model.named_parameters() if name not in before]:
        raise ValueError(f"`before` has no {missing[0]!r}: it must be a state_dict of this model.")
    # Copies with today's memory layout, so that equal numbers are computed in the same way.
    then = {name: torch.empty_like(tensor).copy_(before[name]) for name, tensor in now.items() if name in before}
    anchors = {now[name]: tensor for name, tensor in then.items()}
    weights = [weight for weight in protection.weights if layers is None or weight.name in layers]
    histograms: dict[str, Histogram] = {}

    def add(weight: ProtectedWeight, change: Tensor, rows: Tensor) -> None:
        with full_precision(change.device):
            values = change[0][:, rows] if weight.view.one_hot else rows.to(change) @ change.mT
            histograms.setdefault(weight.name, Histogram()).add(values)

    sinks = {weight: partial(add, weight, weight.difference(anchors)) for weight in weights}
    record_rows(model, sinks, batches, lambda network, batch: functional_call(network, then, batch))
    return {weight.name: histograms[weight.name] for weight in weights if weight.name in histograms}
