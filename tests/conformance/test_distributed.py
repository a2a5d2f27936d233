"""Two processes with half of the data each end with the same memory as one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import assert_same_everywhere, in_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from remnant import GPM, ConsolidationError, LeakError

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no distributed package")


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10), nn.ReLU(), nn.Linear(10, 3)
    )


def data() -> Tensor:
    return torch.randn(48, 2, 4, 4, generator=torch.Generator().manual_seed(5))


def ranks_end_with_identical_bases(rank: int, ranks: int, folder: Path) -> None:
    model = DistributedDataParallel(network())
    memory = GPM(model, 0.9)
    optimizer = memory.attach(torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.05))
    mine = data()[rank::ranks]
    memory.consolidate(list(mine.split(5)))
    for _ in range(20):
        optimizer.zero_grad()
        model(mine + 1).square().mean().backward()
        optimizer.step()
    memory.verify()
    memory.consolidate([mine + 1], samples=30)
    for parameter in model.parameters():
        assert_same_everywhere(parameter)
    for subspace in memory.subspaces.values():
        assert_same_everywhere(subspace.basis)


def the_first_task_is_the_task_in_one_process(rank: int, ranks: int, folder: Path) -> None:
    for sketch in (None, 20):
        memory = GPM(network(), 0.9, sketch=sketch)
        memory.consolidate(list(data()[rank::ranks].split(7)))
        alone = GPM.load(folder / f"alone-{sketch}.safetensors", network())
        for name, subspace in alone.subspaces.items():
            x = torch.randn(4, subspace.capacity)
            assert torch.allclose(subspace.remove(x), memory.subspaces[name].remove(x), atol=1e-5)
        assert alone.report().as_dict() == memory.report().as_dict()


def a_rank_that_fails_does_not_leave_the_other_waiting(rank: int, ranks: int, folder: Path) -> None:
    memory = GPM(network(), 0.9)
    batches = [data()] if rank == 0 else [torch.zeros(1, 7)]  # the second rank's batch does not fit the model
    with pytest.raises(ConsolidationError if rank == 0 else RuntimeError):
        memory.consolidate(batches)
    assert len(memory) == 0


def two_tasks(norm: nn.Module, option: str, rank: int) -> tuple[GPM, nn.Module, Tensor, Tensor]:
    """Trains two tasks and remembers the first one. Returns the old task's inputs, and the outputs that it had."""
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Linear(8, 16), norm, nn.ReLU(), nn.Linear(16, 3))
    model = DistributedDataParallel(plain)
    memory = GPM(model, 0.99999, norm=option, recall=option == "per-task")
    optimizer = memory.attach(torch.optim.AdamW(model.parameters(), lr=1e-2))
    old = torch.randn(20, 2, generator=torch.Generator().manual_seed(rank)) @ torch.ones(2, 8).cumsum(1) + rank
    new = torch.randn(20, 8, generator=torch.Generator().manual_seed(9 + rank))
    before = torch.zeros(0)
    for x in (old, new):
        model.train()
        for _ in range(12):
            optimizer.zero_grad()
            (model(x) - 1).square().mean().backward()
            optimizer.step()
        if x is old:
            memory.consolidate([old])
            if option == "per-task":
                with memory.recall(0):
                    before = plain.eval()(old).detach()
            else:
                before = plain.eval()(old).detach()
    return memory, plain, old, before


NORMS = (nn.BatchNorm1d(16), nn.LayerNorm(16), nn.GroupNorm(4, 16), nn.RMSNorm(16))


def every_norm_is_protected(rank: int, ranks: int, folder: Path) -> None:
    for norm, option in ((norm, option) for norm in NORMS for option in ("freeze", "per-task", "free")):
        memory, plain, old, before = two_tasks(norm, option, rank)
        memory.verify(recall=option == "per-task")
        for parameter in plain.parameters():
            assert_same_everywhere(parameter)
        if option == "per-task":
            with memory.recall(0):
                assert torch.allclose(plain.eval()(old), before, atol=1e-5), norm
        elif option == "freeze":
            assert float((plain.eval()(old) - before).norm() / before.norm()) < 1e-2, norm


def ranks_record_with_the_same_statistics_and_verify_together(rank: int, ranks: int, folder: Path) -> None:
    memory, plain, old, _ = two_tasks(nn.BatchNorm1d(16), "freeze", rank)
    memory.verify([old])
    if rank:
        with torch.no_grad():
            plain.get_parameter("3.weight").add_(1)
    with pytest.raises(LeakError, match=r"'3'" if rank else r"1 other rank\(s\) found a leak"):
        memory.verify()
    with pytest.raises(ValueError if rank else LeakError, match="no batches" if rank else "other rank"):
        memory.verify([old] if rank == 0 else [])


def test_two_ranks_with_whole_weights(tmp_path: Path) -> None:
    for sketch in (None, 20):
        alone = GPM(network(), 0.9, sketch=sketch)
        alone.consolidate([data()])
        alone.save(tmp_path / f"alone-{sketch}.safetensors")
    checks = [
        ranks_end_with_identical_bases,
        the_first_task_is_the_task_in_one_process,
        a_rank_that_fails_does_not_leave_the_other_waiting,
        every_norm_is_protected,
        ranks_record_with_the_same_statistics_and_verify_together,
    ]
    in_ranks(checks, 2, tmp_path)
