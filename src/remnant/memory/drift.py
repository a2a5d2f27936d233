"""How far a network's layers have moved for the inputs of an old task: the paper's interference activation."""

from collections.abc import Collection, Iterable, Mapping
from math import isfinite, ldexp

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .discovery import Selection, discover, unwrap
from .precision import full_precision
from .protected import ProtectedWeight
from .record.recorder import RowSink, record_rows

HALF = 128  # bins on either side of zero; even, so that two neighbours make one bin of twice the width
SMALLEST = -20  # the finest range is ±2^SMALLEST; smaller values are rounding of float32


class Histogram:
    """Counts in 2·HALF equal bins over [−R, R), where R is the smallest power of two above every |value|.

    All edges are multiples of a power of two. So the bin of a value is exact, and the counts do not depend on the batches.
    """

    def __init__(self) -> None:
        self._exponent = SMALLEST
        self._counts = torch.zeros(2 * HALF, dtype=torch.int64)

    def add(self, values: Tensor) -> None:
        if not values.numel():
            return
        largest = float(values.abs().max())
        if not isfinite(largest):
            raise ValueError("a value is NaN or inf")
        while largest >= ldexp(1.0, self._exponent):
            self._double()
        # In float64, the division turns no value into zero.
        bins = (values.detach().flatten().double() / self._width).floor().long() + HALF
        self._counts += torch.bincount(bins, minlength=2 * HALF).cpu()

    @property
    def edges(self) -> list[float]:
        return [number * self._width for number in range(-HALF, HALF + 1)]

    @property
    def counts(self) -> list[int]:
        return [int(count) for count in self._counts]

    @property
    def _width(self) -> float:
        return ldexp(1.0, self._exponent) / HALF

    def _double(self) -> None:
        merged = torch.zeros_like(self._counts)
        merged[HALF // 2 : HALF // 2 + HALF] = self._counts.view(-1, 2).sum(dim=1)
        self._counts = merged
        self._exponent += 1


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
    histograms: dict[str, Histogram] = {}

    def counter(weight: ProtectedWeight) -> RowSink:
        change = weight.difference(anchors)

        def add(rows: Tensor) -> None:
            with full_precision(change.device):
                values = change[0][:, rows] if weight.view.one_hot else rows.to(change) @ change.mT
                histograms.setdefault(weight.name, Histogram()).add(values)

        return add

    sinks = {weight.name: counter(weight) for weight in weights}
    record_rows(model, weights, sinks, batches, lambda network, batch: functional_call(network, then, batch))
    return {weight.name: histograms[weight.name] for weight in weights if weight.name in histograms}
