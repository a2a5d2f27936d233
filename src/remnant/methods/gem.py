"""Gradient Episodic Memory (Lopez-Paz & Ranzato, 2017): never step uphill on any past task's remembered examples."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from remnant.models import Network
from remnant.options import number

from .parts.gradients import default_layout, flat, shaped
from .parts.quadratic import NonNegativeQuadratic
from .parts.replay import Episodic

CHUNK = 4096  # a GPU sums an inner product over a million entries faster as many short ones


class GEM(Episodic):
    """Steps along g if Gg ≥ 0, else along g̃ = g + Gᵀv. Each row of G is the gradient on one past task's memory.

    v minimises ½vᵀGGᵀv + gᵀGᵀv over v ≥ γ. At γ = 0, g̃ is the vector nearest to g with Gg̃ ≥ 0. The stream's tasks share the
    memory evenly. Every step uses all of it, in one pass that is vectorised over tasks: batch normalisation sees one task at
    a time, and running statistics do not change.

    Args:
        memory: How many examples all tasks keep together.
        memory_strength: γ.
        ridge: Added to the diagonal of GGᵀ, as in the published code. It bounds v where the network knows a memory by heart,
            so that its gradient is mostly noise; the constraints then hold only approximately.
    """

    name = "gem"

    def __init__(
        self,
        network: Network,
        *,
        memory_strength: Annotated[float, number(0, 100)] = 0.5,
        ridge: Annotated[float, number(0, 1000)] = 1e-3,
        **options: Any,
    ) -> None:
        super().__init__(network, **options)
        self.memory_strength, self.ridge = memory_strength, ridge
        self.names = {id(parameter): f"network.{name}" for name, parameter in network.named_parameters()}

    def refresh(self) -> None:
        """Arranges the memory as a step reads it: one batch per task."""
        if len(self.memory):
            x, self.past_labels = self.memory.by_task()
            self.past_x = default_layout(x)
            self.solver = NonNegativeQuadratic(len(self.past_labels), self.device)

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
        """G: the gradient of the loss on each past task's memory."""
        tasks = len(self.past_labels)
        parameters = {self.names[id(p)]: default_layout(p.detach()) for p in self.parameters}
        # Copies, because a pass in training mode changes running statistics.
        buffers = {f"network.{name}": b.expand(tasks, *b.shape).clone() for name, b in self.network.named_buffers()}

        def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, labels: Tensor) -> Tensor:
            result: Tensor = functional_call(self.mixed, {**parameters, **buffers}, (x, labels, self.task + 1))
            return result

        per_task = vmap(grad(loss), in_dims=(None, 0, 0, 0), randomness="different")
        rows: dict[str, Tensor] = per_task(parameters, buffers, self.past_x, self.past_labels)
        return flat(list(rows.values()), batch=1)


def without_conflicts(
    gradient: Tensor, past: Tensor, strength: float, ridge: float, solver: NonNegativeQuadratic
) -> Tensor:
    """Returns g + Gᵀv, or g itself if no row of G conflicts with it."""
    products = gram(torch.cat([gradient[None], past]))
    P, q = products[1:, 1:], products[1:, 0]
    P.diagonal().add_(ridge)
    # With v = γ + u and u ≥ 0 it is the same problem in u, with the slope at v = γ.
    u = solver.solve(P, q + strength * P.sum(1))
    v = ((u + strength) * (q < 0).any()).to(past.dtype)
    return torch.addmv(gradient, past.T, v)


def gram(rows: Tensor) -> Tensor:
    """All inner products of the rows, in float64: TF32's error of a thousandth exceeds the slack of a constraint."""
    rows = rows.double()
    whole = rows.shape[1] // CHUNK
    first, rest = rows[:, : whole * CHUNK], rows[:, whole * CHUNK :]
    chunks = first.view(len(rows), whole, CHUNK).transpose(0, 1)
    return torch.bmm(chunks, chunks.mT).sum(0) + rest @ rest.mT
