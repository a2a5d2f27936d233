"""Every test has the same seed and one thread, since small models are slower on two. GPU tests need a GPU."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

from children import START

settings.register_profile(
    "remnant", deadline=None, derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("remnant")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(20210413)


@pytest.fixture(autouse=True)
def _deterministic_off() -> Iterator[None]:
    """A run in this process may have switched torch to deterministic algorithms."""
    yield
    if torch.are_deterministic_algorithms_enabled():  # setting it loads torch's compiler, which takes seconds
        torch.use_deterministic_algorithms(False)


@pytest.fixture
def quick_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several seeds of a plan start in a fraction of a second. The tests in faults/ start them as users do."""
    context = multiprocessing.get_context(START)
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: context)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    """Hides what the tests have imported from the garbage collector. A capture calls it, which took half a second."""
    gc.collect()
    gc.freeze()
