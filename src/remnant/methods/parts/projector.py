"""OWM's projector of one layer: what is left of a gradient outside the mean inputs seen so far."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant.memory import LayerView


class Projector:
    """P ← P − k·kᵀ/(α + x̄ᵀ·k) with k = P·x̄: recursive least squares, which from the identity on is (I + Σ x̄·x̄ᵀ/α)⁻¹.

    In float64: in float32, after some thousand updates with α falling to 1e-5, P had eigenvalues below zero, and what
    it left of the inputs seen was several times too much.

    A bias is the weight of an input that is always 1: with one, P has a row and a column more.
    """

    def __init__(self, view: LayerView) -> None:
        self.view = view
        self.parameters = [view.weight] if view.bias is None else [view.weight, view.bias]
        eye = torch.eye(view.inputs + (view.bias is not None), dtype=torch.float64, device=view.weight.device)
        self.P = eye.repeat(view.groups, 1, 1)

    def see(self, x: Tensor, alpha: Tensor) -> None:
        """Takes a batch of the layer's input into P."""
        # Rows are linear in the input, so the mean image has the batch's mean patch.
        rows = self.view.rows(x.mean(0, keepdim=True, dtype=torch.float64))
        chunks = [rows.unsqueeze(0)] if isinstance(rows, Tensor) else list(rows)
        self._update(self._with_one(torch.cat(chunks, dim=1).mean(1, keepdim=True)), alpha)

    def wanted(self, output: Tensor) -> list[Tensor]:
        """What `project` needs the loss's gradients of, `output` being what the layer made of the batch it saw."""
        return self.parameters

    def project(self, gradients: list[Tensor]) -> list[Tensor]:
        """∇W·P, split into the parameters'."""
        matrix = self.view.matrix(gradients[0])
        columns = [bias.reshape(*matrix.shape[:2], 1) for bias in gradients[1:]]
        return self._split((torch.cat([matrix, *columns], dim=2).double() @ self.P).to(matrix.dtype))

    def _update(self, mean: Tensor, alpha: Tensor) -> None:
        """The formula, for x̄ᵀ of shape (groups, 1, n)."""
        k = self.P @ mean.mT
        self.P.addcmul_(k / (mean @ k + alpha), k.mT, value=-1)

    def _with_one(self, rows: Tensor) -> Tensor:
        return rows if self.view.bias is None else F.pad(rows, (0, 1), value=1.0)

    def _split(self, matrix: Tensor) -> list[Tensor]:
        inputs = self.view.inputs
        return [self.view.tensor(matrix[:, :, :inputs]), *(b.flatten() for b in matrix[:, :, inputs:].unbind(2))]


class LinearProjector(Projector):
    """The same for a linear layer with fewer rows than outputs: ∇W·P = δᵀ·X·P, and X·P is the smaller product."""

    def see(self, x: Tensor, alpha: Tensor) -> None:
        rows = self._with_one(x.reshape(-1, self.view.inputs).double().unsqueeze(0))
        self._update(rows.mean(1, keepdim=True), alpha)
        self._rows = (rows @ self.P).to(x.dtype)

    def wanted(self, output: Tensor) -> list[Tensor]:
        return [output]

    def project(self, gradients: list[Tensor]) -> list[Tensor]:
        delta = gradients[0].reshape(1, -1, self.view.outputs)
        return self._split(delta.mT @ self._rows)


def projector_of(layer: nn.Module, view: LayerView) -> Projector:
    return LinearProjector(view) if isinstance(layer, nn.Linear) else Projector(view)
