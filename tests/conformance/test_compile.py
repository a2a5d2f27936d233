"""Compiled models are remembered and protected like any other."""

from __future__ import annotations

import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant import GPM

# The "eager" backend traces and guards like the others but needs no compiler; "inductor" runs where there is one.
BACKENDS = ["eager", pytest.param("inductor", marks=pytest.mark.skipif(not shutil.which("g++"), reason="needs g++"))]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", ["wrapper", "in place", "inner module"])
def test_a_compiled_model_learns_two_tasks_without_leaking(way: str, backend: str) -> None:
    torch._dynamo.reset()
    plain = Net()
    model: nn.Module = plain
    if way == "wrapper":
        model = torch.compile(plain, backend=backend)
    elif way == "in place":
        plain.compile(backend=backend)
    else:
        plain.body = torch.compile(plain.body, backend=backend)
    memory = GPM(model, 0.9)
    assert set(memory.subspaces) == {"body.0", "body.3", "head"}
    optimizer = memory.attach(torch.optim.AdamW(model.parameters(), lr=1e-2))
    for task in range(2):
        x = torch.randn(64, 12) + task
        y = (x[:, :3] * (1 - 2 * task)).argmax(1)
        model.train()
        first = None
        for _ in range(40):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            first = loss.item() if first is None else first
            loss.backward()
            optimizer.step()
        assert loss.item() < 0.8 * first
        if task:
            memory.verify([x])  # the norm's statistics are frozen in compiled code too
            assert all(check.leak <= 1e-4 for check in memory.verify().layers)
        assert all(count > 0 for count in memory.consolidate([x]).values()) or task
