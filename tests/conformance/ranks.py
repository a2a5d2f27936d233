"""Runs checks in several processes of one gloo group. All of a file's checks share one start, which takes seconds."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from children import START

Check = Callable[[int, int, Path], None]  # takes its rank, the number of ranks and a folder


def in_ranks(checks: Sequence[Check], ranks: int, folder: Path) -> None:
    """Runs the checks one after the other in every rank, and raises the error of the first rank that fails."""
    mp.start_processes(_run, args=(ranks, folder, checks), nprocs=ranks, start_method=START)


def _run(rank: int, ranks: int, folder: Path, checks: Sequence[Check]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    start = f"file://{folder}/rendezvous{ranks}"
    dist.init_process_group("gloo", init_method=start, rank=rank, world_size=ranks, timeout=timedelta(minutes=3))
    for check in checks:
        try:
            check(rank, ranks, folder)
        except BaseException as error:
            error.add_note(f"in {check}, rank {rank} of {ranks}")
            raise
    dist.destroy_process_group()


def assert_same_everywhere(tensor: Tensor) -> None:
    """Every rank has the same bits as rank 0."""
    first = tensor.detach().clone()
    dist.broadcast(first, src=0)
    assert torch.equal(first, tensor.detach())
