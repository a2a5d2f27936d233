"""`torch.set_default_device` moves what is made without a device. A memory must not: its model may be on another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remnant

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "soft": {"soft": 5},
    "recall": {"recall": True},
    "own parts": {"recall": True, "own_rank": 2},
    "own norms": {"recall": True, "norm": "per-task"},
    "sketch": {"sketch": 8},
}


def network() -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    return nn.Sequential(body, nn.Linear(4 * 36, 20), nn.ReLU(), nn.Linear(20, 3))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.attention, self.head = nn.Embedding(9, 8), nn.MultiheadAttention(8, 2), nn.Linear(8, 3)

    def forward(self, numbers: Tensor) -> Tensor:
        x = self.table(numbers)
        return self.head(x + self.attention(x, x, x)[0]).mean(1)


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """What is made without a device has no values."""
    before = torch.get_default_device()
    yield
    torch.set_default_device(before)


def learn(memory: remnant.GPM, model: nn.Module, batches: list[Tensor]) -> None:
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1
    )  # its state is where its weights are
    memory.attach(optimizer)
    for x in batches:
        for _ in range(3):
            nn.functional.cross_entropy(model(x), x.flatten(1).sum(1).long().remainder(3)).backward()
            optimizer.step()
            optimizer.zero_grad()
        memory.consolidate([x])
    memory.detach(optimizer)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_memory_works_beside_its_model(name: str, elsewhere: None, tmp_path: Path) -> None:
    batches = [torch.rand(30, 1, 8, 8) for _ in range(2)]
    models = [network() for _ in range(2)]
    reports = []
    for model, default in zip(models, ("cpu", "meta"), strict=True):
        torch.manual_seed(1)
        torch.set_default_device(default)
        memory = remnant.GPM(model, threshold=0.9, **OPTIONS[name])
        learn(memory, model, batches)
        memory.verify(batches[:1])
        memory.save(tmp_path / default)
        loaded = remnant.GPM.load(tmp_path / default, model)
        reports.append([str(memory.report()), str(loaded.report())])
        if OPTIONS[name].get("recall"):
            memory.which_task(batches[0])
            with memory.recall(0):
                model(batches[0])
    assert reports[0] == reports[1]
    for one, other in zip(*(model.state_dict().values() for model in models), strict=True):
        assert torch.equal(one, other)


def test_embeddings_and_attention_too(elsewhere: None) -> None:
    model, numbers = Words(), torch.randint(9, (12, 5))
    torch.set_default_device("meta")
    memory = remnant.GPM(model, threshold=0.9)
    learn(memory, model, [numbers])
    assert memory.verify([numbers]).worst < 1e-4
