"""Flattening sharpness for dynamic GPM, FS-DGPM (Deng et al., 2021): replay, and ascent inside a weighted memory."""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from remnant.data import Split
from remnant.memory import TaskInputs, grow_by
from remnant.models import Network
from remnant.options import Positive, number

from .base import Method
from .gpm import Forward, GradientProjection
from .parts.gradients import clipped
from .parts.replay import Replay
from .parts.reservoir import Reservoir
from .parts.scaled import ScaledLayer

TEMPERATURE = 10.0
MOMENTUM = 0.9  # of the importance
LEAST_HALF = 2  # rows; batch normalisation needs them
Rate = Annotated[float, number(0, 10)]


class FSDGPM(Replay, GradientProjection):
    """Steps along g − g·M·Λ·Mᵀ, where g is the gradient on a batch and a remembered one, at weights that were made worse.

    Twice, on one half of the batch each, the weights climb inside the memory: θ' ← θ' + `ascent`·g'·M·Λ·Mᵀ. Then g is the
    gradient of the loss at θ', through the ascent with `second_order`, scaled down to a norm of `clip`. Λ = σ(10·s) has a
    weight for each direction. s starts at `importance_start`, which is nearly hard protection if it is 1, and follows the
    same loss by SGD with momentum and the rate `importance_lr`. The public code loses track of s, so its Λ hardly moves.

    A reservoir remembers `memory` examples of all tasks. When a task ends, a new M is computed from `samples` of them and
    replaces the old one. All tasks train the heads so far and, with `task_norms="free"`, the norms.
    """

    name = "fs-dgpm"
    buffer: Reservoir
    importance: dict[str, Tensor]  # layer → s
    velocity: dict[str, Tensor]

    def __init__(
        self,
        network: Network,
        *,
        memory: Positive = 1000,
        ascent: Rate = 1e-3,
        importance_lr: Rate = 0.01,
        importance_start: Annotated[float, number(-5, 5)] = 1.0,
        clip: Annotated[float, number(0, 1e6, above=True)] = 2.0,
        second_order: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(network, **options)
        self.ascent, self.importance_lr, self.importance_start = ascent, importance_lr, importance_start
        self.clip, self.second_order = clip, second_order
        self.layers = ScaledLayer.among(network, self.memory.subspaces)
        if other := [name for name in self.memory.subspaces if name not in self.layers]:
            raise ValueError(f"FS-DGPM supports only plain linear layers and convolutions, and not {other[0]!r}.")
        self.keep("buffer", Reservoir(memory, network.example))
        self.keep("importance", {}, counted=False)
        self.keep("velocity", {}, counted=False)
        grow_by(self.memory, self.renew)
        self.bases: dict[str, Tensor] = {}

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The body, without what the memory freezes, and the heads of all tasks so far."""
        frozen = set(self.projector.frozen_parameters)
        return [p for p in super().parameters if p not in frozen]

    def start(self, task: int) -> None:
        ranks = {name: self.subspace(name).rank for name in self.layers}
        like = self.network.example
        self.importance = {name: like.new_full((rank,), self.importance_start) for name, rank in ranks.items() if rank}
        self.velocity = {name: torch.zeros_like(s) for name, s in self.importance.items()}
        super().start(task)

    def refresh(self) -> None:
        self.bases = {name: self.basis(name) for name in self.importance}

    def loss_at(self, weights: dict[Tensor, Tensor], x: Tensor, labels: Tensor) -> Tensor:
        """Returns the loss of examples of all tasks so far, with other weights in the place of some parameters."""
        named = {f"network.{name}": weights[p] for name, p in self.network.named_parameters() if p in weights}
        loss: Tensor = functional_call(self.mixed, named, (x, labels, self.task + 1))
        return loss

    def inside(self, name: str, gradients: Mapping[Tensor, Tensor], importance: Tensor) -> dict[Tensor, Tensor]:
        """Returns g·M·Λ·Mᵀ for the gradient of a layer, by parameter."""
        layer, M = self.layers[name], self.bases[name]
        weighted = (layer.gradient(gradients) @ M) * torch.sigmoid(TEMPERATURE * importance)
        return layer.by_parameter(weighted @ M.mT)

    def climbed(self, x: Tensor, labels: Tensor, importance: dict[str, Tensor]) -> dict[Tensor, Tensor]:
        """Returns θ'."""
        weights: dict[Tensor, Tensor] = {p: p for name in importance for p in self.layers[name].parameters}
        halves = [2 * [rows] if len(x) < 2 * LEAST_HALF else rows.chunk(2) for rows in (x, labels)]
        for part, own in zip(*halves, strict=True) if weights else ():
            loss = self.loss_at(weights, part, own)
            found = torch.autograd.grad(loss, list(weights.values()), create_graph=self.second_order)
            gradients = dict(zip(weights, found, strict=True))
            for name, s in importance.items():
                uphill = self.inside(name, gradients, s)
                weights |= {p: weights[p] + self.ascent * step for p, step in uphill.items()}
        return weights

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        labels = self.mixed.labels(y, self.task)
        remembered, their_labels = self.buffer.draw(len(y))
        importance = {name: s.detach().requires_grad_() for name, s in self.importance.items()}
        weights = self.climbed(x, labels, importance)
        loss = self.loss_at(weights, torch.cat([x, remembered]), torch.cat([labels, their_labels]))
        parameters = self.parameters
        found = torch.autograd.grad(loss, [*parameters, *importance.values()])
        gradients: dict[Tensor, Tensor] = dict(
            zip(parameters, clipped(list(found[: len(parameters)]), self.clip), strict=True)
        )
        for name, s in self.importance.items():
            gradients |= {p: gradients[p] - part for p, part in self.inside(name, gradients, s).items()}
        self.apply_gradients(gradients)
        for s, v, g in zip(self.importance.values(), self.velocity.values(), found[len(parameters) :], strict=True):
            s.sub_(v.mul_(MOMENTUM).add_(g), alpha=self.importance_lr)
        self.buffer.offer(x, labels)
        return loss.detach()

    def apply_gradients(self, gradients: dict[Tensor, Tensor]) -> None:
        Method.apply_gradients(self, gradients)  # nothing is held: Λ is soft, and replay remembers too

    def on_epoch_end(self) -> None:
        """Λ is soft, so there is nothing to restore."""

    def finish(self, task: int, train: Split, forward: Forward | None = None) -> None:
        for name, s in self.importance.items():
            self.subspace(name).weights = torch.sigmoid(TEMPERATURE * s)
        x, labels = self.buffer.draw(self.samples)
        super().finish(task, Split.of(x, labels), forward)

    def renew(self, inputs: TaskInputs, threshold: float) -> None:
        """Replaces M by the fewest directions that hold the share ε of the energy of the buffer's examples (Eq. 5)."""
        subspace = inputs.subspace
        subspace.load({"basis": subspace.basis[:, :0]})
        subspace.weights = subspace.weights  # keeps directions and not their complement
        subspace.grow(inputs.rows_gram, threshold, self.rank_rule)

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.buffer.nbytes
