"""Damaged and forged memories are refused, and several threads may use one memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fuzz_memory
import pytest
import torch
from fuzz import FAULTS, Run
from torch import nn

from remnant import GPM


@pytest.mark.parametrize("run", [fuzz_memory.files, fuzz_memory.forged])
def test_a_damaged_memory_is_refused_or_works(run: Run) -> None:
    counts = run(1, 120)
    assert counts.total() == 120
    assert not any(counts[fault] for fault in FAULTS), counts


@pytest.mark.filterwarnings("ignore:These layers are full")
def test_four_threads_that_consolidate_and_save_one_memory_wait_for_each_other(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tasks = [torch.randn(20, 3) @ torch.randn(3, 32) for _ in range(4)]
    model = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
    memory = GPM(model, threshold=0.9)

    def learn(task: int) -> None:
        memory.consolidate(tasks[task].split(5))
        memory.save(tmp_path / f"{task}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(learn, range(4)))
    assert len(memory) == 4
    assert fuzz_memory.is_sound(memory)
    for task in range(4):
        assert fuzz_memory.is_sound(GPM.load(tmp_path / f"{task}", model))
    for rows in tasks:
        outside = memory.subspaces["0"].remove(torch.cat([rows, torch.ones(20, 1)], dim=1))  # type: ignore[union-attr]
        assert float(outside.square().sum()) < 0.11 * float(rows.square().sum() + 20)
