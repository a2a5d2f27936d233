"""Compiled models are remembered and protected like any other."""

from __future__ import annotations

import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant import GPM

# The "eager" backend traces and guards like the others but needs no compiler. What calls the code of "inductor" is the
# same for all three ways, and each compilation takes seconds.
needs_a_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
WAYS = [
    *((way, "eager") for way in ("wrapper", "in place", "inner module")),
    pytest.param("wrapper", "inductor", marks=needs_a_compiler),
]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@pytest.mark.parametrize(("way", "backend"), WAYS)
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


@pytest.mark.filterwarnings("ignore:Old outputs moved")
def test_a_step_that_is_compiled_as_a_whole_is_protected() -> None:
    """The memory's hooks stay out of the graph: inductor cannot compile them, and they change with every task."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 3))
    memory = GPM(model, 0.9)
    optimizer = memory.attach(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        graphs.append(graph.print_readable(print_output=False))
        return graph.forward

    @torch.compile(backend=backend)
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    for task in range(2):
        x = torch.randn(64, 12) + task
        y = (x[:, :3] * (1 - 2 * task)).argmax(1)
        losses = [float(step(x, y)) for _ in range(30)]
        assert losses[-1] < 0.8 * losses[0]
        if task:
            assert memory.verify().worst < 1e-5
        memory.consolidate([x])
    assert any("torch/optim/sgd.py" in graph for graph in graphs), "the optimizer's own step is not compiled"
    assert not any("remnant/memory" in graph for graph in graphs)
