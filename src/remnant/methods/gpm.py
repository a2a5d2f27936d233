"""Gradient Projection Memory (Saha, Garg & Roy, 2021), as the paper trains it: plain SGD on projected gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from remnant import memory
from remnant.data import Split
from remnant.memory import by_layer
from remnant.models import Network

from .base import Method


class GPM(Method):
    """Steps only along what remains of the gradient outside the inputs that past tasks used (Eq. 6–7)."""

    name = "gpm"

    def __init__(
        self,
        network: Network,
        *,
        lr: float,
        threshold: Mapping[str, Any],
        samples: int,
        layer_samples: Mapping[str, int] | None = None,
        rank_rule: str = "paper",
    ) -> None:
        super().__init__(network, lr=lr)
        self.samples, self.layer_samples = samples, layer_samples
        # Heads of their own are left free, a shared one is a layer like the others (Sec. 6).
        exclude = ["heads.*"] if network.multi_head else []
        self.memory = memory.GPM(network, threshold, exclude=exclude, rank_rule=rank_rule)
        by_layer(
            layer_samples or {}, self.memory.subspaces, "layer_samples"
        )  # refused now, not after a task was learnt

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Without those that the memory holds: their gradients would be made for nothing."""
        held = {id(p) for p in self.memory.frozen_parameters}
        return [p for p in super().parameters if id(p) not in held]

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        with self.memory.inputs_projected(len(x)):
            loss = self.loss(x, y)
            gradients: dict[Tensor, Tensor] = dict(zip(self.parameters, self.gradients(loss), strict=True))
            self.memory.project_gradients(gradients)
        self.apply_gradients(list(gradients.values()))
        return loss.detach()

    def remaining(self) -> dict[str, Tensor]:
        return self.memory.remaining()

    def on_epoch_end(self) -> None:
        """Puts back what rounding has moved inside the memory; TF32 leaves about a thousandth of the change there."""
        self.memory.restore()

    def finish(self, task: int, train: Split) -> None:
        """Eq. 5, 8, 9 on `samples` random training examples, in one batch: norms may use that batch's statistics."""
        chosen = torch.randperm(len(train), device=self.device)[: self.samples]
        self.memory.consolidate(
            [train.x[chosen]], layer_samples=self.layer_samples, forward=lambda network, x: network(x, task)
        )

    def ranks(self) -> dict[str, list[int]]:
        return {layer.name: list(layer.added) for layer in self.memory.report().layers}

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "memory": self.memory.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.memory.load_state_dict(state["memory"])
