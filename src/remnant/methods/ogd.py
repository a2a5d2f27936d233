"""Orthogonal gradient descent (Farajtabar et al., 2020): steps that leave the logits of past examples alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from remnant.data import Split
from remnant.memory import ConsolidationError
from remnant.models import Network

from .parts.fixed_norm import FixedNorm
from .parts.flat import flat, shaped

BLOCK = 256  # rows in float64 at a time
ROUNDING = 1e-5  # a direction with less than this, relative to the largest gradient, is what float32 made of zero


class OGD(FixedNorm):
    """Steps along g − Qᵀ·(Q·g), the rows of Q an orthonormal basis of stored gradients of past tasks.

    After a task, the gradients of the true class's logit at `samples` random training examples are added to it. A
    gradient is that of all weights together, one long vector; a shared head is in it, heads of their own are not.
    Memory: `samples` numbers a weight and task.
    """

    name = "ogd"

    def __init__(self, network: Network, *, lr: float, samples: int) -> None:
        super().__init__(network, lr=lr)
        self.samples = samples
        own = {id(p) for head in network.heads for p in head.parameters()} if network.multi_head else set()
        norms = {id(p) for norm in self.norms for p in norm.parameters()}
        self.held = [p for p in network.parameters() if p.requires_grad and id(p) not in own | norms]
        self.Q = self.held[0].new_zeros(0, sum(p.numel() for p in self.held)).detach()

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self.loss(x, y)
        gradients: dict[Tensor, Tensor] = dict(zip(self.parameters, self.gradients(loss), strict=True))
        if len(self.Q):
            g = flat([gradients[p] for p in self.held])
            left = torch.addmv(g, self.Q.mT, self.Q @ g, alpha=-1)
            gradients.update(zip(self.held, shaped(left, self.held), strict=True))
        self.apply_gradients(list(gradients.values()))
        return loss.detach()

    def finish(self, task: int, train: Split) -> None:
        chosen = torch.randperm(len(train), device=self.device)[: self.samples]
        rows = self._logit_gradients(train.x[chosen], train.y[chosen], task)
        if not bool(rows.isfinite().all()):
            raise ConsolidationError("The logits' gradients contain NaN or inf: did training diverge? Try a lower lr.")
        self.Q = torch.cat([self.Q, orthonormal(rows, self.Q)])

    def _logit_gradients(self, x: Tensor, y: Tensor, task: int) -> Tensor:
        """One row an example. All go through the network as one batch: norms may use that batch's statistics."""
        self.network.eval()
        logits = self.logits(x, task).gather(1, y[:, None])
        return torch.stack([flat(torch.autograd.grad(logit, self.held, retain_graph=True)) for logit in logits])

    @property
    def nbytes(self) -> int:
        return self.Q.nbytes

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "Q": self.Q}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.Q = state["Q"].to(self.device)


@torch.no_grad()
def orthonormal(rows: Tensor, basis: Tensor) -> Tensor:
    """An orthonormal basis, as rows, of what `rows` have outside the span of `basis`, whose rows are orthonormal.

    Gram–Schmidt by blocks, in float64 and twice: once leaves rounding behind where little is left of a row. A row that
    lies in the span of others adds nothing.
    """
    new = rows.double()
    largest = new.square().sum(1).max()
    for _ in range(2):
        for block in basis.split(BLOCK):
            new = new - (new @ block.double().mT) @ block.double()
        energies, vectors = torch.linalg.eigh(new @ new.mT)
        real = energies > ROUNDING**2 * largest
        new = (vectors[:, real] / energies[real].sqrt()).mT @ new
        largest = torch.ones_like(largest)
    return new.to(basis.dtype)
