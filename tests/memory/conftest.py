"""Fixtures: a small network, and a memory of it after one task."""

from __future__ import annotations

import pytest
from small_net import Net, data

from remnant import GPM


@pytest.fixture
def net() -> Net:
    return Net()


@pytest.fixture
def memory(net: Net) -> GPM:
    """After one task."""
    memory = GPM(net, threshold=0.95)
    memory.consolidate(data())
    return memory
