"""Inputs that a model rewrites, buffers that disappear, layers that are read and never called, and other odd habits."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from remnant import GPM, ConsolidationError, LeakError

WIDTH = 24


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def train(model: nn.Module, optimizer: Any, x: Tensor, steps: int = 10) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x.clone()) - 1).square().mean().backward()
        optimizer.step()


class ReadsTable(nn.Module):
    """Reads the table of an embedding as a tensor, as DeBERTa-v2 reads its relative positions."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)
        self.table = nn.Embedding(4, WIDTH)
        nn.init.normal_(self.table.weight, std=scale)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head((self.first(x) + self.second(self.table.weight).mean(0)).tanh())
        return out


@pytest.mark.parametrize("scale", [0.1, 1e-4, 0.0])
def test_a_table_that_is_read_and_never_called_is_refused_however_small_its_effect_is(scale: float) -> None:
    model = ReadsTable(scale)
    memory = GPM(model, 1.0)
    train(model, memory.attach(torch.optim.AdamW(model.parameters(), lr=1e-6)), torch.randn(6, WIDTH))
    with pytest.raises(ConsolidationError, match=r"'table' got gradients .* never called"):
        memory.consolidate([torch.randn(6, WIDTH)])


def test_such_a_table_can_be_frozen() -> None:
    model, old = ReadsTable(1e-4), torch.randn(6, WIDTH)
    memory = GPM(model, 1.0, unsupported="freeze")
    optimizer = memory.attach(torch.optim.AdamW(model.parameters(), lr=1e-2))
    train(model, optimizer, old)
    memory.consolidate([old])
    before = model(old).detach()
    train(model, optimizer, torch.randn(6, WIDTH))
    assert float((model(old) - before).norm() / before.norm()) < 1e-5
    memory.verify([old])


class Rewrites(nn.Module):
    """Changes its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x.sin_().add_(0.5)).tanh())
        return out


@pytest.mark.parametrize("measures_loss", [False, True])
def test_a_model_may_change_its_input_in_place(measures_loss: bool) -> None:
    model, old = Rewrites(), torch.randn(6, WIDTH)
    memory = GPM(model, 1.0, recall=True)
    optimizer = memory.attach(torch.optim.AdamW(model.parameters(), lr=1e-2))
    train(model, optimizer, old)
    memory.consolidate([(old.clone(), torch.zeros(6, dtype=torch.long))], recall=measures_loss)
    memory.verify()
    before = model(old.clone()).detach()
    train(model, optimizer, torch.randn(6, WIDTH))
    assert float((model(old.clone()) - before).norm() / before.norm()) < 1e-5
    memory.verify()


class WithTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 5)
        self.register_buffer("table", torch.randn(WIDTH))
        self.register_buffer("unused", torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second((self.norm(self.first(x)) + self.table).tanh())
        return out


def without_running_statistics(model: Any) -> None:
    model.norm.track_running_stats, model.norm.running_mean, model.norm.running_var = False, None, None


def with_a_plain_tensor(model: Any) -> None:
    del model.table
    model.table = torch.zeros(WIDTH)


def without_the_unused_one(model: Any) -> None:
    del model.unused


@pytest.mark.parametrize("change", [without_running_statistics, with_a_plain_tensor, without_the_unused_one])
def test_a_buffer_that_is_gone_is_missed_if_the_outputs_moved(change: Any) -> None:
    model, old = WithTable(), torch.randn(8, WIDTH)
    memory = GPM(model, 1.0)
    train(model, memory.attach(torch.optim.AdamW(model.parameters(), lr=1e-2)), old)
    memory.consolidate([old])
    change(model)
    if change is without_the_unused_one:
        memory.verify()
    else:
        with pytest.raises(LeakError, match="different outputs from then"):
            memory.verify()


class AlwaysTrains(nn.BatchNorm1d):
    def train(self, mode: bool = True) -> nn.BatchNorm1d:
        return super().train(True)


def test_a_norm_that_is_switched_to_its_running_statistics_is_named_and_raises_no_alarm() -> None:
    model, old = nn.Sequential(nn.Linear(WIDTH, WIDTH), AlwaysTrains(WIDTH), nn.Linear(WIDTH, 5)), torch.randn(8, WIDTH)
    memory = GPM(model, 1.0)
    train(model, memory.attach(torch.optim.SGD(model.parameters(), lr=0.1)), old)
    with pytest.warns(UserWarning, match=r"'1' used the statistics of the batch .* norm=\"free\""):
        memory.consolidate([old])
    memory.verify()


def test_making_a_memory_leaves_spectral_norms_as_they_are(tmp_path: Path) -> None:
    def make() -> nn.Module:
        return nn.Sequential(spectral_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh(), nn.Linear(WIDTH, WIDTH))

    model, old = make(), torch.randn(6, WIDTH)
    memory = GPM(model, 1.0, unsupported="freeze")
    train(model, memory.attach(torch.optim.Adam(model.parameters(), lr=1e-2)), old)
    memory.consolidate([old])
    memory.save(tmp_path / "memory")
    copy = make()
    copy.load_state_dict(model.state_dict())
    saved = {name: tensor.clone() for name, tensor in copy.state_dict().items()}
    loaded = GPM.load(tmp_path / "memory", copy)
    assert all(torch.equal(tensor, saved[name]) for name, tensor in copy.state_dict().items())
    loaded.verify()


def test_examples_of_very_different_size_are_remembered() -> None:
    layers = nn.Linear(WIDTH, WIDTH, bias=False), nn.LayerNorm(WIDTH), nn.Tanh(), nn.Linear(WIDTH, 5)
    model, rows = nn.Sequential(*layers), torch.randn(8, WIDTH)
    GPM(model).consolidate([rows * torch.tensor([1e6, 1.0]).repeat(4)[:, None]])


def test_own_parts_start_again_under_fused_momentum() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 5))
    memory = GPM(model, recall=True, own_rank=4)
    optimizer = memory.attach(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True))
    for _ in range(2):
        x = torch.randn(16, WIDTH)
        train(model, optimizer, x, steps=3)
        memory.consolidate([x])
    memory.verify()


def test_a_name_with_brackets_matches_itself() -> None:
    model = nn.Sequential(OrderedDict({"a[0]": nn.Linear(4, 4), "b": nn.Linear(4, 4)}))
    assert list(GPM(model, exclude=["a[0]"]).subspaces) == ["b"]
    assert list(GPM(model, {"a[0]": 0.9, "*": 0.99}).subspaces) == ["a[0]", "b"]


class Branches(nn.Module):
    """Each task has a branch with a scale in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.branches = nn.Linear(WIDTH, WIDTH), nn.ModuleList(nn.Linear(WIDTH, 5) for _ in range(2))
        self.register_buffer("scales", torch.ones(1))
        self.register_buffer("late_scales", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        late = bool(x[0, 0] > 0)
        out: Tensor = self.branches[late](self.first(x).tanh()) * (self.late_scales if late else self.scales)
        return out


def test_a_buffer_that_only_an_earlier_task_reads_is_watched() -> None:
    model = Branches()
    memory = GPM(model, 1.0)
    early, late = (torch.cat([torch.full((8, 1), side), torch.randn(8, WIDTH - 1)], dim=1) for side in (-1.0, 1.0))
    for x in (early, late):
        memory.consolidate([x])
    model.scales *= 1.05  # below what verify() warns about
    with pytest.raises(LeakError, match="'scales'"):
        memory.verify()
