"""A network for tests that select its parts by name."""

from __future__ import annotations

from torch import Tensor, nn


class TwoHeads(nn.Module):
    """A body with a norm, and two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5, bias=False))
        self.heads = nn.ModuleList([nn.Linear(5, 2), nn.Linear(5, 3)])

    def forward(self, x: Tensor) -> Tensor:
        return self.heads[0](self.body(x))
