"""A small network with a convolution, a norm and groups; data in few directions; and a training loop for it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3, padding=1, groups=1)
        self.norm = nn.BatchNorm1d(4)
        self.depthwise = nn.Conv1d(4, 4, 3, padding=1, groups=4, bias=False)
        self.hidden = nn.Linear(32, 12)
        self.out = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.depthwise(F.relu(self.norm(self.conv(x.unsqueeze(1)))))
        return self.out(F.relu(self.hidden(maps.flatten(1))))


def data(rank: int = 2, count: int = 24, width: int = 8) -> Tensor:
    """Rows in few directions, so that memories have room left."""
    return torch.randn(count, rank) @ torch.randn(rank, width) + torch.randn(width)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    steps: int = 10,
    loss: Callable[[Tensor], Tensor] = lambda y: (y - 1).square().mean(),
) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x)).backward()
        optimizer.step()


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.05)
