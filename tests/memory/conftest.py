"""A small network for every test that asks, and a memory of it that is one task old."""

from __future__ import annotations

import pytest
from small_net import Net, data

from remnant import GPM


@pytest.fixture
def net() -> Net:
    return Net()


@pytest.fixture
def memory(net: Net) -> GPM:
    """One task old."""
    memory = GPM(net, threshold=0.95)
    memory.consolidate(data())
    return memory
