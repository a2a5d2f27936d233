"""One memory in many processes: Gram matrices are summed, failures are shared, bases are made identical."""

import torch
import torch.distributed as dist

from ..gram import Counts, Gram
from ..subspace import Subspace


def world() -> tuple[int, int]:
    """This process's rank and the number of processes; (0, 1) without a process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def total(number: int) -> int:
    """The sum of a number over all processes."""
    if world()[1] == 1:
        return number
    shared = torch.tensor(number, device=_device())
    dist.all_reduce(shared)
    return int(shared)


def anywhere(flags: list[bool]) -> list[bool]:
    """Which of these flags are set in any process."""
    if world()[1] == 1 or not flags:
        return flags
    shared = torch.tensor(flags, dtype=torch.int32, device=_device())
    dist.all_reduce(shared)
    return [count > 0 for count in shared.tolist()]


def add_up(gram: Gram | Counts) -> None:
    """Replaces a Gram matrix by its sum over all processes."""
    if world()[1] == 1:
        return
    matrix = gram.matrix()
    shared = matrix.to(_device()).contiguous()
    dist.all_reduce(shared)
    gram.replace(shared.to(matrix.device))
    gram.count = total(gram.count)


def make_identical(subspace: Subspace) -> None:
    """Gives all processes the directions of rank 0: different hardware may round an eigenvector differently."""
    if world()[1] == 1:
        return
    shared = [{name: tensor.cpu() for name, tensor in subspace.state().items()}]
    dist.broadcast_object_list(shared, src=0, device=_device())
    subspace.load(shared[0])


def _device() -> torch.device:
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
