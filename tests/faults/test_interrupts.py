"""An exception at any line of `consolidate` or `load_state_dict` leaves the memory and the model as they were."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import remnant
from remnant import GPM

HERE = str(remnant.__path__[0])
POINTS = 24  # of several hundred; `make fuzz` takes them all


class Interrupt(BaseException):
    """What Ctrl-C raises, as far as the code can tell."""


def interrupted(operation: Callable[[], object], point: int) -> bool:
    """Raises at the given line, counted from the start, of the package's code. False if there are fewer lines."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(HERE):
            return None
        if event == "line" and (count := count + 1) == point:
            raise Interrupt
        return trace

    sys.settrace(trace)
    try:
        operation()
        return False
    except Interrupt:
        return True
    finally:
        sys.settrace(None)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.conv(x))).flatten(1))


def learnt(tasks: int) -> tuple[Net, GPM, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = Net()
    memory = GPM(net, threshold=0.8, recall=True)
    optimizer = memory.attach(torch.optim.SGD(net.parameters(), lr=0.1))
    for _ in range(tasks):
        step(net, optimizer)
        memory.consolidate(torch.randn(12, 2, 4, 4))
    step(net, optimizer)
    return net, memory, optimizer


def step(net: Net, optimizer: torch.optim.Optimizer) -> None:
    net.train()
    net(torch.randn(12, 2, 4, 4)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def everything(net: Net, memory: GPM) -> list[Any]:
    """All that may not change: weights, buffers, modes, hooks, the memory's whole state."""
    modules = [
        (m.training, "train" in vars(m), list(m._forward_hooks), list(m._forward_pre_hooks)) for m in net.modules()
    ]
    return [modules, torch.backends.mha.get_fastpath_enabled(), *flat(net.state_dict()), *flat(memory.state_dict())]


def flat(value: Any) -> list[Any]:
    if isinstance(value, Tensor):
        return [value.shape, value.flatten().tolist()]
    if isinstance(value, dict):
        return [part for key, item in value.items() for part in (key, *flat(item))]
    return [part for item in value for part in flat(item)] if isinstance(value, list) else [value]


def lines_of(operation: Callable[[], object]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line" and frame.f_code.co_filename.startswith(HERE)
        return trace if frame.f_code.co_filename.startswith(HERE) else None

    sys.settrace(trace)
    try:
        operation()
    finally:
        sys.settrace(None)
    return count


def half_made(operation: str, tasks: int, points: int) -> tuple[int, list[int]]:
    """Interrupts at about so many points. Their number, and those that left something changed."""
    torch.manual_seed(1)
    batch = torch.randn(12, 2, 4, 4)
    state = learnt(2)[1].state_dict()
    operations: dict[str, Callable[[GPM], object]] = {
        "consolidate": lambda memory: memory.consolidate(batch),
        "load_state_dict": lambda memory: memory.load_state_dict(state),
    }
    run = operations[operation]
    total = lines_of(lambda: run(learnt(tasks)[1]))
    found, chosen = [], range(1, total + 1, max(1, total // points))
    for point in chosen:
        net, memory, optimizer = learnt(tasks)
        before = everything(net, memory)
        if not interrupted(lambda memory=memory: run(memory), point):
            continue
        if everything(net, memory) != before:
            found.append(point)
        step(net, optimizer)
        memory.verify()
        memory.consolidate(batch)
    return len(chosen), found


@pytest.mark.filterwarnings("ignore:Old outputs moved")
@pytest.mark.parametrize("tasks", [0, 1])
@pytest.mark.parametrize("operation", ["consolidate", "load_state_dict"])
def test_an_interrupt_leaves_nothing_half_made(operation: str, tasks: int) -> None:
    points, found = half_made(operation, tasks, POINTS)
    assert points >= POINTS
    assert found == []
