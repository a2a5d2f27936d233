"""One memory over many ranks: Grams are summed, failures shared, bases made identical."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from ..gram import Counts, Gram
from ..subspace import Subspace


def world() -> tuple[int, int]:
    """This process's rank and how many there are; (0, 1) where no process group runs."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def total(number: int) -> int:
    """The sum of a number over all ranks."""
    if world()[1] == 1:
        return number
    shared = torch.tensor(number, device=_device())
    dist.all_reduce(shared)
    return int(shared)


def anywhere(flags: list[bool]) -> list[bool]:
    """Which of these are so on any rank."""
    if world()[1] == 1 or not flags:
        return flags
    shared = torch.tensor(flags, dtype=torch.int32, device=_device())
    dist.all_reduce(shared)
    return [count > 0 for count in shared.tolist()]


def add_up(gram: Gram | Counts) -> None:
    """Replaces a rank's Gram by the sum over all ranks."""
    if world()[1] == 1:
        return
    matrix = gram.matrix()
    shared = matrix.to(_device()).contiguous()
    dist.all_reduce(shared)
    gram.replace(shared.to(matrix.device))
    gram.count = total(gram.count)


def same_everywhere(subspace: Subspace) -> None:
    """Rank 0's directions on every rank: different hardware may round an eigenvector differently."""
    if world()[1] == 1:
        return
    names = ("basis", "complement", "axes", "weights")
    state = subspace.state()
    sizes = [state[name].numel() if name in state else -1 for name in names]
    shared = torch.tensor(sizes, device=_device())
    dist.broadcast(shared, 0)
    received: dict[str, Tensor] = {}
    for name, size in zip(names, shared.tolist(), strict=True):
        if size < 0:
            continue
        like = next(iter(state.values()))
        mine = state[name] if name in state and state[name].numel() == size else like.new_zeros(size)
        buffer = mine.reshape(-1).to(_device()).clone()
        dist.broadcast(buffer, 0)
        columns = name in ("basis", "complement")
        received[name] = buffer.reshape(subspace.capacity, size // subspace.capacity) if columns else buffer
    subspace.load(received)


def _device() -> torch.device:
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
