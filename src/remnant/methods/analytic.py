"""Ridge regression on features that are never trained, solved from sums over all tasks. It is not a projection method."""

from typing import Annotated, Any

import torch
from torch import Tensor

from remnant.models import Network
from remnant.options import number

from .base import Method

Ridge = Annotated[float, number(0, 1e6, above=True)]


class Analytic(Method):
    """Head = (Σφφᵀ + λI)⁻¹·Σφyᵀ, where φ are the features of the network as it was initialised, and y is one-hot.

    Both sums run over all tasks so far, so the head is the same as after joint training: nothing is forgotten, and no example
    is kept. λ is `ridge` times the mean of Σφφᵀ's diagonal. With a head per task, each is solved from its task's sums.
    A head's bias is 0. The learning rate has no effect, and each example counts once: in the first epoch.
    """

    name = "analytic"
    gram: Tensor  # Σφφᵀ
    cross: Tensor  # Σφyᵀ
    counts: Tensor  # 1 in the first epoch of a task, then 0

    def __init__(self, network: Network, *, ridge: Ridge = 1e-4, **options: Any) -> None:
        super().__init__(network, **options)
        self.ridge = ridge
        size = network.head_of(0).in_features
        self.keep("gram", network.example.new_zeros(size, size, dtype=torch.float64))
        self.keep("cross", self.gram.new_zeros(size, max(network.classes)))
        self.keep("counts", self.gram.new_ones(()), counted=False)

    def start(self, task: int) -> None:
        super().start(task)
        self.counts.fill_(1)
        if self.network.multi_head:
            self.gram.zero_()
            self.cross.zero_()

    def on_epoch_start(self, epoch: int, epochs: int, steps: int) -> None:
        self.counts.fill_(epoch == 0)

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """Adds a batch to the sums. Returns the squared error of the head as it was solved last."""
        self.network.eval()  # without dropout
        features = self.network.features(x)
        scores: Tensor = self.network.head_of(self.task)(features)
        wanted = y[:, None] == torch.arange(self.cross.shape[1], device=self.device)
        rows = features.double()
        self.gram.addmm_(self.counts * rows.T, rows)
        self.cross.addmm_(self.counts * rows.T, wanted.double())
        return (scores - wanted[:, : scores.shape[1]].to(scores.dtype)).square().sum(1).mean()

    @torch.no_grad()
    def on_epoch_end(self) -> None:
        """Solves the head of the current task."""
        system = self.gram.clone()
        system.diagonal().add_(self.ridge * self.gram.diagonal().mean())
        head = self.network.head_of(self.task)
        head.weight.copy_(torch.linalg.solve(system, self.cross).T[: head.out_features])
        if head.bias is not None:
            head.bias.zero_()
