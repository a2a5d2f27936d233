"""Projects a layer's input inside backward, in place of its weight's gradient: δᵀ·(X·P) = (δᵀ·X)·P (Eq. 6–7).

A gradient has a row for every output, a batch often has fewer: 64 rows stand for the 2048 of a wide layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .projection import Projection
from .protected import ProtectedWeight


class _Linear(torch.autograd.Function):
    """x·Wᵀ, whose weight's gradient comes out projected."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, projection: Projection) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.projection = projection
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (delta,) = gradients
        x, weight = ctx.saved_tensors
        to_x, to_weight, _ = ctx.needs_input_grad
        gradient = None
        if to_weight:
            rows = x.flatten(end_dim=-2)
            gradient = delta.flatten(end_dim=-2).mT @ ctx.projection.remove(rows[None])[0]
        return delta @ weight if to_x else None, gradient, None


def worth_it(weight: ProtectedWeight, rows: int) -> bool:
    """Whether a weight can be protected through its input, and a batch has fewer rows than its gradient."""
    site, *others = weight.sites
    plain = type(site.module) is nn.Linear and site.module.bias is None and "forward" not in vars(site.module)
    return plain and not others and weight.rank > 0 and rows < weight.view.outputs


@contextmanager
def projected(weights: Iterable[ProtectedWeight], rows: int) -> Iterator[None]:
    """Within it these weights' gradients come out projected, for batches of so many rows."""
    layers = []
    try:
        for weight in weights:
            layer, projection = weight.sites[0].module, weight.projection_of_rows(rows)
            layers.append(layer)
            layer.forward = lambda x, w=layer.weight, p=projection: _Linear.apply(x, w, p)  # type: ignore[no-untyped-call]
        yield
    finally:
        for layer in layers:
            del layer.forward
