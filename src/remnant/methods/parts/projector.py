"""OWM's projector of one layer: it removes from a gradient the mean inputs seen so far."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant.memory import LayerView


class Projector:
    """P ← P − k·kᵀ/(α + x̄ᵀ·k) with k = P·x̄: recursive least squares. Starting from I, P is (I + Σ x̄·x̄ᵀ/α)⁻¹.

    P is in float64. In float32, after some thousand updates with α falling to 1e-5, P had negative eigenvalues and removed
    several times too little. A bias is the weight of an input that is always 1 and adds a row and a column to P.
    """

    def __init__(self, view: LayerView) -> None:
        self.view = view
        self.parameters = [view.weight] if view.bias is None else [view.weight, view.bias]
        eye = torch.eye(view.inputs + (view.bias is not None), dtype=torch.float64, device=view.weight.device)
        self.P = eye.repeat(view.groups, 1, 1)

    def update(self, x: Tensor, alpha: Tensor) -> None:
        """Updates P with a batch of the layer's input."""
        # Rows are linear in the input, so the mean image has the batch's mean patch.
        rows = self.view.rows(x.mean(0, keepdim=True, dtype=torch.float64))
        chunks = [rows.unsqueeze(0)] if isinstance(rows, Tensor) else list(rows)
        self._shrink(self._with_one(torch.cat(chunks, dim=1).mean(1, keepdim=True)), alpha)

    def wanted(self, output: Tensor) -> list[Tensor]:
        """The tensors whose gradients `project` takes, given the layer's output."""
        return self.parameters

    def project(self, gradients: list[Tensor]) -> list[Tensor]:
        """∇W·P, split into weight and bias."""
        matrix = self.view.matrix(gradients[0])
        columns = [bias.reshape(*matrix.shape[:2], 1) for bias in gradients[1:]]
        return self._split((torch.cat([matrix, *columns], dim=2).double() @ self.P).to(matrix.dtype))

    def _shrink(self, mean: Tensor, alpha: Tensor) -> None:
        """The formula, for x̄ᵀ of shape (groups, 1, n)."""
        k = self.P @ mean.mT
        self.P.addcmul_(k / (mean @ k + alpha), k.mT, value=-1)

    def _with_one(self, rows: Tensor) -> Tensor:
        return rows if self.view.bias is None else F.pad(rows, (0, 1), value=1.0)

    def _split(self, matrix: Tensor) -> list[Tensor]:
        inputs = self.view.inputs
        return [self.view.tensor(matrix[:, :, :inputs]), *(b.flatten() for b in matrix[:, :, inputs:].unbind(2))]


class LinearProjector(Projector):
    """The same for a linear layer with fewer rows than outputs: ∇W·P = δᵀ·(X·P), and X·P is the smaller product."""

    def update(self, x: Tensor, alpha: Tensor) -> None:
        rows = self._with_one(x.reshape(-1, self.view.inputs).double().unsqueeze(0))
        self._shrink(rows.mean(1, keepdim=True), alpha)
        self._rows = (rows @ self.P).to(x.dtype)

    def wanted(self, output: Tensor) -> list[Tensor]:
        return [output]

    def project(self, gradients: list[Tensor]) -> list[Tensor]:
        delta = gradients[0].reshape(1, -1, self.view.outputs)
        return self._split(delta.mT @ self._rows)


def projector_of(layer: nn.Module, view: LayerView) -> Projector:
    return LinearProjector(view) if isinstance(layer, nn.Linear) else Projector(view)
