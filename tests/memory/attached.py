"""Trains with an optimizer that is attached only while it trains."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from remnant import GPM


def train_attached(
    memory: GPM,
    loss: Callable[[], Tensor],
    steps: int = 20,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    lr: float = 0.05,
) -> None:
    chosen = memory.attach(optimizer(memory._model.parameters(), lr=lr))
    for _ in range(steps):
        chosen.zero_grad()
        loss().backward()
        chosen.step()
    memory.detach(chosen)
