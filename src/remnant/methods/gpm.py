"""Gradient Projection Memory (Saha, Garg & Roy, 2021) as the paper trains it: SGD on projected gradients."""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from remnant.data import Split
from remnant.memory import GPM, RANK_RULES, StepProjector, by_layer
from remnant.models import Network
from remnant.options import Positive, choice, per_layer, threshold, whole

from .base import Method


class GradientProjection(Method):
    """Steps along the part of the gradient that is orthogonal to the inputs of past tasks (Eq. 6–7).

    `threshold` is ε: a number, `{"start": ε₀, "step": δ}` for ε₀ + δ·t, or `{"layers": {pattern: ε}}`. Random `samples` of a
    task represent it; `layer_samples` gives layers, by name pattern, fewer of them. `rank_rule` is "paper" for Eq. 5, or
    "authors" for the count of the published scripts.
    """

    name = "gpm"
    memory: GPM

    def __init__(
        self,
        network: Network,
        *,
        threshold: Annotated[Any, threshold()] = 0.97,
        samples: Positive = 300,
        layer_samples: Annotated[Mapping[str, int] | None, per_layer(whole(1))] = None,
        rank_rule: Annotated[str, choice(RANK_RULES)] = "paper",
        **options: Any,
    ) -> None:
        super().__init__(network, **options)
        self.samples, self.layer_samples = samples, layer_samples
        # Heads of single tasks are free; a shared head is a layer like the others (Sec. 6).
        exclude = ["heads.*"] if network.multi_head else []
        memory = GPM(network, threshold, exclude=exclude, rank_rule=rank_rule)
        if layer_samples:  # refuses unknown layers before training
            by_layer(layer_samples, memory.subspaces, "layer_samples")
        self.keep("memory", memory)
        self.projector = StepProjector(memory)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The task's parameters without those that the memory freezes, which need no gradient."""
        frozen = set(self.projector.frozen_parameters)
        return [p for p in super().parameters if p not in frozen]

    fast_form = "projected-sgd"

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        with self.projector.through_inputs(len(x)):
            loss = self.loss(x, y)
            gradients = self.projector.project(self.gradients(loss))
        self.apply_gradients(gradients)
        if not self.uses_plain_sgd:
            self.projector.restore()  # the step of another optimiser is no multiple of the projected gradient
        return loss.detach()

    def layer_projections(self) -> dict[str, Tensor]:
        return self.projector.layer_projections()

    def on_epoch_end(self) -> None:
        """Undoes what rounding has moved inside the memory; with TF32 that is about a thousandth of the change."""
        self.projector.restore()

    def finish(self, task: int, train: Split) -> None:
        """Eq. 5, 8 and 9 on random training examples, in one batch because norms may use its statistics."""
        chosen = torch.randperm(len(train), device=self.device)[: self.samples]
        self.memory.consolidate(
            [train.x[chosen]], layer_samples=self.layer_samples, forward=lambda network, x: network(x, task)
        )

    @property
    def nbytes(self) -> int:
        return self.memory.report().nbytes

    def ranks(self) -> dict[str, list[int]]:
        return {layer.name: list(layer.added) for layer in self.memory.report().layers}
