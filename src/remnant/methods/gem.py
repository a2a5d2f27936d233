"""Gradient Episodic Memory (Lopez-Paz & Ranzato, 2017): never step uphill on any past task's remembered examples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from remnant.models import Network

from .parts.flat import flat, shaped
from .parts.layout import default_layout
from .parts.quadratic import NonNegativeQuadratic
from .parts.replay import Episodic

CHUNK = 4096  # entries of a gradient summed by one part of the GPU: an inner product of a million is many short ones


class GEM(Episodic):
    """Steps along g where Gg ≥ 0, G having the gradient on each past task's memory as a row; else along g̃ = g + Gᵀv.

    v minimises ½vᵀGGᵀv + gᵀGᵀv over v ≥ γ (`memory_strength`): at γ = 0, g̃ is the nearest to g with Gg̃ ≥ 0; at a larger γ
    the nearest to g + γ·Gᵀ1. `ridge` is added to GGᵀ's diagonal, as the published code does. It bounds v where a memory is
    known by heart and its gradient is small and mostly noise; the constraints then hold but nearly.

    The memory is shared evenly by the stream's tasks. All that is kept is used in every step, in one pass that is vectorised
    over tasks: a norm by the batch sees one task at a time, and running statistics stay as they are.
    """

    name = "gem"

    def __init__(
        self, network: Network, *, lr: float, memory: int, memory_strength: float = 0.5, ridge: float = 0.0
    ) -> None:
        super().__init__(network, lr=lr, memory=memory)
        self.memory_strength, self.ridge = memory_strength, ridge
        self.names = {id(parameter): f"network.{name}" for name, parameter in network.named_parameters()}

    def start(self, task: int) -> None:
        super().start(task)
        self._lay_out()

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self.loss(x, y)
        gradients = self.gradients(loss)
        if len(self.memory):
            past = self.past_gradients()
            vector = without_conflicts(flat(gradients), past, self.memory_strength, self.ridge, self.solver)
            gradients = shaped(vector, gradients)
        self.apply_gradients(gradients)
        return loss.detach()

    def past_gradients(self) -> Tensor:
        """One row for each past task: the gradient of the loss on what is remembered of it."""
        tasks = len(self.past_labels)
        parameters = {self.names[id(p)]: default_layout(p.detach()) for p in self.parameters}
        # Copies, because a pass in training changes running statistics.
        buffers = {f"network.{name}": b.expand(tasks, *b.shape).clone() for name, b in self.network.named_buffers()}

        def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, labels: Tensor) -> Tensor:
            result: Tensor = functional_call(self.mixed, {**parameters, **buffers}, (x, labels, self.task + 1))
            return result

        per_task = vmap(grad(loss), in_dims=(None, 0, 0, 0), randomness="different")
        rows: dict[str, Tensor] = per_task(parameters, buffers, self.past_x, self.past_labels)
        return flat(list(rows.values()), batch=1)

    def _lay_out(self) -> None:
        """The memory as a step reads it."""
        if len(self.memory):
            x, self.past_labels = self.memory.by_task()
            self.past_x = default_layout(x)
            self.solver = NonNegativeQuadratic(len(self.past_labels), self.device)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._lay_out()


def without_conflicts(
    gradient: Tensor, past: Tensor, strength: float, ridge: float, solver: NonNegativeQuadratic
) -> Tensor:
    """g + Gᵀv, and g itself where no row of G conflicts with it."""
    products = gram(torch.cat([gradient[None], past]))
    P, q = products[1:, 1:], products[1:, 0]
    P.diagonal().add_(ridge)
    # v = γ + u with u ≥ 0: the same problem in u, with the slope at v = γ.
    u = solver.solve(P, q + strength * P.sum(1))
    v = ((u + strength) * (q < 0).any()).to(past.dtype)
    return torch.addmv(gradient, past.T, v)


def gram(rows: Tensor) -> Tensor:
    """All inner products of the rows, in float64: TF32's would be off by a thousandth, more than a constraint's slack."""
    rows = rows.double()
    whole = rows.shape[1] // CHUNK
    first, rest = rows[:, : whole * CHUNK], rows[:, whole * CHUNK :]
    chunks = first.view(len(rows), whole, CHUNK).transpose(0, 1)
    return torch.bmm(chunks, chunks.mT).sum(0) + rest @ rest.mT
