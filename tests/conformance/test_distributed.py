"""Two processes with half of the data each end with the same memory as one process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
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


def join(rank: int, folder: Path) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)


def learn(rank: int, folder: Path) -> None:
    join(rank, folder)
    model = DistributedDataParallel(network())
    memory = GPM(model, 0.9)
    optimizer = memory.attach(torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.05))
    mine = data()[rank::2]
    memory.consolidate(list(mine.split(5)))
    for _ in range(20):
        optimizer.zero_grad()
        model(mine + 1).square().mean().backward()
        optimizer.step()
    memory.verify()
    memory.consolidate([mine + 1], samples=30)
    memory.save(folder / f"rank{rank}.safetensors")
    torch.save(model.module.state_dict(), folder / f"weights{rank}.pt")
    dist.destroy_process_group()


def fail_on_one(rank: int, folder: Path) -> None:
    join(rank, folder)
    memory = GPM(network(), 0.9)
    batches = [data()] if rank == 0 else [torch.zeros(1, 7)]  # the second rank's batch does not fit the model
    before = memory.state_dict()
    with pytest.raises(ConsolidationError if rank == 0 else RuntimeError):
        memory.consolidate(batches)
    assert len(memory) == 0
    assert memory.state_dict()["layers"].keys() == before["layers"].keys()
    (folder / f"survived{rank}").touch()
    dist.destroy_process_group()


def test_two_ranks_end_with_identical_bases(tmp_path: Path) -> None:
    mp.spawn(learn, args=(tmp_path,), nprocs=2)
    weights = [torch.load(tmp_path / f"weights{rank}.pt", weights_only=True) for rank in (0, 1)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    memories = [GPM.load(tmp_path / f"rank{rank}.safetensors", network()) for rank in (0, 1)]
    for name, subspace in memories[0].subspaces.items():
        assert torch.equal(subspace.basis, memories[1].subspaces[name].basis)
    assert memories[0].report().as_dict() == memories[1].report().as_dict()


def test_the_first_task_over_two_ranks_is_the_task_in_one_process(tmp_path: Path) -> None:
    mp.spawn(first_task, args=(tmp_path,), nprocs=2)
    alone = GPM(network(), 0.9)
    alone.consolidate([data()])
    together = GPM.load(tmp_path / "first.safetensors", network())
    for name, subspace in alone.subspaces.items():
        x = torch.randn(4, subspace.capacity)
        assert torch.allclose(subspace.remove(x), together.subspaces[name].remove(x), atol=1e-5)
    assert alone.report().as_dict() == together.report().as_dict()


def first_task(rank: int, folder: Path) -> None:
    join(rank, folder)
    memory = GPM(network(), 0.9)
    memory.consolidate(list(data()[rank::2].split(7)))
    if rank == 0:
        memory.save(folder / "first.safetensors")
    dist.destroy_process_group()


def test_a_rank_that_fails_does_not_leave_the_other_waiting(tmp_path: Path) -> None:
    mp.spawn(fail_on_one, args=(tmp_path,), nprocs=2)
    assert (tmp_path / "survived0").exists()
    assert (tmp_path / "survived1").exists()


def with_statistics(rank: int, folder: Path) -> None:
    join(rank, folder)
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    model = DistributedDataParallel(plain)
    memory = GPM(model, 0.99999)
    optimizer = memory.attach(torch.optim.AdamW(model.parameters(), lr=1e-2))
    old = torch.randn(20, 2, generator=torch.Generator().manual_seed(rank)) @ torch.ones(2, 8).cumsum(1) + rank
    new = torch.randn(20, 8, generator=torch.Generator().manual_seed(9 + rank))

    def train(x: Tensor) -> None:
        model.train()
        for _ in range(20):
            optimizer.zero_grad()
            (model(x) - 1).square().mean().backward()
            optimizer.step()

    train(old)
    memory.consolidate([old])
    before = plain.eval()(old).detach()
    train(new)
    memory.verify([old])
    assert float((plain.eval()(old) - before).norm() / before.norm()) < 1e-2
    if rank:
        with torch.no_grad():
            plain[3].weight += 1
    with pytest.raises(LeakError, match=r"'3'" if rank else r"1 other rank\(s\) found a leak"):
        memory.verify()
    with pytest.raises(ValueError if rank else LeakError, match="no batches" if rank else "other rank"):
        memory.verify([old] if rank == 0 else [])
    (folder / f"survived{rank}").touch()
    dist.destroy_process_group()


def test_ranks_record_with_the_same_statistics_and_verify_together(tmp_path: Path) -> None:
    mp.spawn(with_statistics, args=(tmp_path,), nprocs=2)
    assert (tmp_path / "survived0").exists()
    assert (tmp_path / "survived1").exists()
