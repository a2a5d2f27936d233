"""Gradient Episodic Memory (Lopez-Paz & Ranzato, 2017): never step uphill on any past task's remembered examples."""

from typing import Annotated, Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from remnant.models import Network
from remnant.options import Positive, number

from .parts.gradients import default_layout, flat, unflat
from .parts.replay import NO_LABEL, Episodic

CHUNK = 4096  # a GPU sums an inner product over a million entries faster as many short ones
EVERY_SET = 10  # the largest number of variables for which all sets of positive variables are tried
SETS, ROUNDS = 256, 12  # with more variables: sets tried at once, and how often each is improved
RIDGE = 1e-12  # relative, far below the accuracy needed: equal constraints then have one solution
Gamma = Annotated[float, number(0, 100)]
Ridge = Annotated[float, number(0, 1000)]


class GEM(Episodic):
    """Steps along g if Gg ≥ 0, else along g̃ = g + Gᵀv. Each row of G is the gradient on one past task's memory.

    v minimises ½vᵀGGᵀv + gᵀGᵀv over v ≥ γ, the `memory_strength`. At γ = 0, g̃ is the vector nearest to g with Gg̃ ≥ 0. The
    `ridge` is added to the diagonal of GGᵀ, as in the published code. It bounds v where the network knows a memory by heart,
    so that its gradient is mostly noise; the constraints then hold only approximately.

    The stream's tasks share the `memory` evenly. Every step uses all of it, or `memory_batch` random examples, as many of
    each past task. They take one pass that is vectorised over tasks: batch normalisation sees one task at a time, and
    running statistics do not change.
    """

    name = "gem"

    def __init__(
        self,
        network: Network,
        *,
        memory_strength: Gamma = 0.5,
        ridge: Ridge = 1e-3,
        memory_batch: Positive | None = None,
        **options: Any,
    ) -> None:
        super().__init__(network, **options)
        self.memory_strength, self.ridge, self.memory_batch = memory_strength, ridge, memory_batch

    def refresh(self) -> None:
        """Arranges the memory as a step reads it: one batch per task."""
        if len(self.memory):
            x, self.past_labels = self.memory.by_task()
            self.past_x = default_layout(x)
            self.past_counts = (self.past_labels != NO_LABEL).sum(1, keepdim=True)
            self.solver = NonNegativeQuadratic(len(self.past_labels), self.device)

    def gradients(self, loss: Tensor) -> dict[Tensor, Tensor]:
        g = super().gradients(loss)
        if not len(self.memory):
            return g
        G = self.past_gradients()
        return unflat(without_conflicts(flat(g.values()), G, self.memory_strength, self.ridge, self.solver), list(g))

    def past_gradients(self) -> Tensor:
        """G: the gradient of the loss on each past task's memory."""
        x, labels = self._drawn()
        tasks, own = len(labels), set(self.parameters)
        parameters = {name: default_layout(p.detach()) for name, p in self.mixed.named_parameters() if p in own}
        # Copies, because a pass in training mode changes running statistics.
        buffers = {name: b.expand(tasks, *b.shape).clone() for name, b in self.mixed.named_buffers()}

        def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, labels: Tensor) -> Tensor:
            return functional_call(self.mixed, {**parameters, **buffers}, (x, labels, self.task + 1))

        per_task = vmap(grad(loss), in_dims=(None, 0, 0, 0), randomness="different")
        rows: dict[str, Tensor] = per_task(parameters, buffers, x, labels)
        return flat(rows.values(), batch=1)

    def _drawn(self) -> tuple[Tensor, Tensor]:
        """Returns one batch per past task."""
        tasks, most = self.past_labels.shape
        each = most if self.memory_batch is None else max(2, self.memory_batch // tasks)  # a norm needs two examples
        if each >= most:
            return self.past_x, self.past_labels
        examples = (torch.rand(tasks, each, device=self.device) * self.past_counts).long()
        task = torch.arange(tasks, device=self.device)[:, None]
        return self.past_x[task, examples], self.past_labels[task, examples]


class NonNegativeQuadratic:
    """Minimises ½vᵀPv + qᵀv over v ≥ 0 on the device, with P positive semi-definite and q in its range, both float64.

    P·v = −q holds on the set of positive variables. A batch of linear systems tries many candidates for this set at once:
    negative results are cut to 0, and the lowest point wins. Up to `EVERY_SET` variables all sets are tried, which is exact.
    With more, block principal pivoting improves `SETS` sets `ROUNDS` times: a variable enters a set if the slope Pv + q is
    negative there, and leaves it if its value is negative. The first set swaps all such variables, the others a fixed random
    half, so that they do not cycle together. The elimination is written out because a library's solver would wait for the
    host.
    """

    def __init__(self, variables: int, device: torch.device) -> None:
        if variables <= EVERY_SET:
            sets = (torch.arange(2**variables)[:, None] >> torch.arange(variables)) & 1 == 1
            swaps = torch.zeros(0, dtype=torch.bool)
        else:
            sets = torch.zeros(SETS, variables, dtype=torch.bool)
            own = torch.Generator().manual_seed(0)  # the same problem has the same solution
            swaps = torch.rand(ROUNDS - 1, SETS, variables, generator=own) < 0.5
            swaps[:, 0] = True
        self.sets, self.swaps = sets.to(device), swaps.to(device)
        self.identity = torch.eye(variables, dtype=torch.float64, device=device)
        self.ridge = 1 + RIDGE * self.identity

    def solve(self, P: Tensor, q: Tensor) -> Tensor:
        P = P * self.ridge
        sets, points = self.sets, [self._points(P, q, self.sets)]
        for swaps in self.swaps:
            wrong = torch.where(sets, points[-1], torch.addmm(q, points[-1], P)) < 0
            sets = sets ^ (wrong & swaps)
            points.append(self._points(P, q, sets))
        tried = torch.cat(points).clamp(min=0)
        heights = torch.linalg.vecdot(torch.addmm(q, tried, P, alpha=0.5), tried)
        # A singular system may give NaN.
        best = heights.nan_to_num(torch.inf, neginf=torch.inf).argmin(keepdim=True)
        return tried.index_select(0, best)[0]

    def _points(self, P: Tensor, q: Tensor, sets: Tensor) -> Tensor:
        """For each set, v with P·v = −q on the set and 0 elsewhere: Gauss–Jordan; such a P needs no row exchanges."""
        on = sets.to(P.dtype)
        both = on[:, :, None] * on[:, None, :]
        outside = self.identity * (1 - on)[:, :, None]
        tableau = torch.cat([torch.addcmul(outside, both, P), (on * -q)[:, :, None]], dim=2)
        for pivot in range(len(q)):
            row = tableau[:, pivot : pivot + 1, 1:] / tableau[:, pivot : pivot + 1, :1]
            column = tableau[:, :, :1] - self.identity[:, pivot : pivot + 1]
            tableau = torch.addcmul(tableau[:, :, 1:], column, row, value=-1)
        return tableau[:, :, 0]


def without_conflicts(
    gradient: Tensor, past: Tensor, strength: float, ridge: float, solver: NonNegativeQuadratic
) -> Tensor:
    """Returns g̃ = g + Gᵀv, or g itself if no row of G conflicts with it."""
    products = gram(torch.cat([gradient[None], past]))
    P, q = products[1:, 1:], products[1:, 0]
    P.diagonal().add_(ridge)
    # With v = γ + u, the same problem in u ≥ 0 has the slope at v = γ in the place of q.
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
