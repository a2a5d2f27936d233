"""Projects gradients that are kept apart from `.grad`, for a training loop that applies them itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .projection import Projection
from .protected import ProtectedWeight

if TYPE_CHECKING:
    from .gpm import GPM


class StepProjector:
    r"""Projects one plain SGD step at a time: :math:`\nabla W \leftarrow \nabla W\,(I - M M^\top)` (Eq. 6–7).

    It needs no optimizer and leaves `.grad` alone, so a step can be recorded into a CUDA graph. After steps that are not
    plain SGD, or from time to time against rounding, call `GPM.restore`.
    """

    def __init__(self, memory: GPM) -> None:
        self._constraint, self._weights = memory._constraint, memory._protection.weights
        self._through_inputs: set[ProtectedWeight] = set()

    @property
    def frozen_parameters(self) -> list[Tensor]:
        """The parameters that must not move: from the second task on, those that `norm`, `bias` and `unsupported` freeze."""
        return self._constraint.frozen_parameters

    @torch.no_grad()
    def project(self, gradients: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """Projects gradients (parameter → gradient) in place, sets those of frozen parameters to 0, and returns the dict."""
        self._constraint.stepped.update(gradients)
        if self._constraint.anchors:
            for weight in self._weights:
                if weight.rank and weight not in self._through_inputs:
                    weight.project_among(gradients)
            gradients.update({p: torch.zeros_like(p) for p in self.frozen_parameters if p in gradients})
        return gradients

    @contextmanager
    def through_inputs(self, rows: int) -> Iterator[None]:
        """Projects through the layers' inputs where that is cheaper for batches of `rows` rows: δᵀ·(X·P) = (δᵀ·X)·P.

        Run a forward pass, its backward pass and `project` inside the block; `project` then skips those layers. The gradient
        of a layer has one row per output, and a batch often has fewer: 64, where a wide layer has 2048 outputs.
        """
        chosen = [weight for weight in self._weights if _is_cheaper_through_input(weight, rows)]
        layers = [weight.sites[0].module for weight in chosen]
        self._through_inputs = set(chosen)
        try:
            for layer, weight in zip(layers, chosen, strict=True):
                projection = weight.projection(rows, weight.view.weight.dtype, weight.view.weight.device)
                layer.forward = lambda x, w=layer.weight, p=projection: _ProjectedLinear.apply(x, w, p)  # type: ignore
            yield
        finally:
            self._through_inputs = set()
            for layer in layers:
                vars(layer).pop("forward", None)

    def layer_projections(self) -> dict[str, Tensor]:
        """Returns layer → I − M·Mᵀ, for every ungrouped layer with a rank above 0. A step multiplies gradients by it."""
        layers = {w.name: (w.subspaces, w.view.weight) for w in self._weights if w.rank and w.view.groups == 1}
        return {
            name: Projection(subspaces, 1, weight.dtype, weight.device, form="dense").right[0]
            for name, (subspaces, weight) in layers.items()
        }


class _ProjectedLinear(torch.autograd.Function):
    """x·Wᵀ, with a backward pass that projects the gradient of W."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, projection: Projection) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.projection = projection
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (delta,) = gradients
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, _ = ctx.needs_input_grad
        gradient = None
        if needs_weight:
            gradient = delta.flatten(end_dim=-2).mT @ ctx.projection.remove(x.flatten(end_dim=-2)[None])[0]
        return delta @ weight if needs_x else None, gradient, None


def _is_cheaper_through_input(weight: ProtectedWeight, rows: int) -> bool:
    site, *others = weight.sites
    plain = type(site.module) is nn.Linear and site.module.bias is None and "forward" not in vars(site.module)
    return plain and not others and weight.rank > 0 and rows < weight.view.outputs
