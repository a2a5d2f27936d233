"""Orthogonal gradient descent (Farajtabar et al., 2020): steps that leave the logits of past examples unchanged."""

from typing import Any

import torch
from torch import Tensor

from remnant.data import Split
from remnant.memory import ConsolidationError
from remnant.models import Network
from remnant.options import Positive

from .base import Method
from .parts.gradients import flat, unflat

BLOCK = 256  # rows of Q that are in float64 at a time
ROUNDING = 1e-5  # a direction shorter than this, relative to the longest gradient, is float32's rounding of zero


class OGD(Method):
    """Steps along g − Qᵀ·(Q·g). The rows of Q are an orthonormal basis of gradients stored for past tasks.

    After each task, Q gains the gradients of the true class's logit at random training examples, up to `samples` rows. Such
    a gradient is one long vector over all shared parameters (`shared_parameters`).
    """

    name = "ogd"
    freezes_norms = True
    Q: Tensor

    def __init__(self, network: Network, *, samples: Positive = 200, **options: Any) -> None:
        super().__init__(network, **options)
        self.samples = samples
        self.protected = list(self.shared_parameters().values())
        size = sum(p.numel() for p in self.protected)
        self.keep("Q", self.protected[0].detach().new_zeros(0, size), per_step=False)

    def gradients(self, loss: Tensor) -> dict[Tensor, Tensor]:
        gradients = super().gradients(loss)
        if len(self.Q):
            g = flat(gradients[p] for p in self.protected)
            gradients |= unflat(torch.addmv(g, self.Q.mT, self.Q @ g, alpha=-1), self.protected)
        return gradients

    def finish(self, task: int, train: Split) -> None:
        chosen = torch.randperm(len(train), device=self.device)[: self.samples]
        rows = self._logit_gradients(train.x[chosen], train.y[chosen], task)
        if not bool(rows.isfinite().all()):
            raise ConsolidationError("The logits' gradients contain NaN or inf: did training diverge? Try a lower lr.")
        self.Q = torch.cat([self.Q, orthonormal(rows, self.Q)])

    def _logit_gradients(self, x: Tensor, y: Tensor, task: int) -> Tensor:
        """Returns one row per example. Examples pass the network as one batch, because norms may use its statistics."""
        self.network.eval()
        logits = self.logits(x, task).gather(1, y[:, None])
        return torch.stack([flat(torch.autograd.grad(logit, self.protected, retain_graph=True)) for logit in logits])


@torch.no_grad()
def orthonormal(rows: Tensor, basis: Tensor) -> Tensor:
    """Returns an orthonormal basis, as rows, of the part of `rows` outside the span of the orthonormal `basis`.

    Gram–Schmidt by blocks, in float64 and twice: once leaves rounding errors where little remains of a row.
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
