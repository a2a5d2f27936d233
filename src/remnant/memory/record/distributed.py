"""One memory in many processes: Gram matrices are summed, failures are shared, bases are made identical."""

import torch
import torch.distributed as dist
from torch import Tensor

from ..gram import Counts, Gram
from ..subspace import Subspace


def world() -> tuple[int, int]:
    """This process's rank and the number of processes; (0, 1) without a process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def summed(tensor: Tensor) -> Tensor:
    """The sum of a tensor over all processes."""
    if world()[1] == 1 or not tensor.numel():
        return tensor
    shared = tensor.to(_device()).contiguous()
    dist.all_reduce(shared)
    return shared.to(tensor.device)


def add_up(gram: Gram | Counts) -> None:
    """Replaces a Gram matrix by its sum over all processes."""
    if world()[1] > 1:
        gram.replace(summed(gram.matrix()))
        gram.count = int(summed(torch.tensor(gram.count)))


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
