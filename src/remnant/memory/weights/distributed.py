"""Processes that train one model: sums over all of them, and parameters of which each process has a part (DTensors)."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

ENDED = object()
PLAIN = (Tensor, nn.Parameter)


def world() -> tuple[int, int]:
    """This process's rank and the number of processes; (0, 1) without a process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def summed(tensor: Tensor) -> Tensor:
    """The sum of a tensor over all processes."""
    if world()[1] == 1 or not tensor.numel():
        return tensor
    shared = tensor.to(_shared_device()).contiguous()
    dist.all_reduce(shared)
    return shared.to(tensor.device)


def from_process(source: int, tensor: Tensor) -> Tensor:
    """The tensor that the process `source` has; the others pass one of the same shape and type."""
    shared = tensor.to(_shared_device()).contiguous()
    dist.broadcast(shared, src=source)
    return shared.to(tensor.device)


def object_from_process(source: int, value: Any) -> Any:
    """The value that the process `source` has. Tensors in it must be on the CPU."""
    shared = [value]
    dist.broadcast_object_list(shared, src=source, device=_shared_device())
    return shared[0]


def _shared_device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor. (An import of the class would take a second, and this runs in every step.)"""
    return type(tensor) not in PLAIN and hasattr(tensor, "device_mesh")


def shard_of(tensor: Any) -> Tensor:
    """This process's part of a tensor, as a view; of a tensor that is not sharded, all of it."""
    part = tensor.detach()
    if is_sharded(tensor):
        with torch.no_grad():
            part = part.to_local()
    return cast(Tensor, part)


def shards(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The parts of several tensors: torch's functions of lists do not take sharded and other tensors together."""
    return [shard_of(tensor) if is_sharded(tensor) else tensor for tensor in tensors]


def whole(tensor: Any) -> Tensor:
    """All of a tensor, in every process. All processes must call it."""
    if not is_sharded(tensor):
        return cast(Tensor, tensor)
    with torch.no_grad():
        return cast(Tensor, tensor.full_tensor())


def sharded_like(tensor: Tensor, like: Any) -> Tensor:
    """Keeps this process's part of a tensor that every process has, if `like` is sharded."""
    if not is_sharded(like):
        return tensor
    from torch.distributed.tensor import Replicate

    mesh = like.device_mesh
    with torch.no_grad():
        everywhere = type(like).from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)
        return cast(Tensor, everywhere.redistribute(mesh, like.placements))


def reshard(model: nn.Module) -> list[Any]:
    """Puts the shards back in place: after a forward pass without a backward pass, FSDP leaves whole copies there.

    Returns:
        The modules that `fully_shard` was called on.
    """
    loaded: Any = sys.modules.get("torch.distributed.fsdp")  # before its import, which takes a second, there are none
    sharded = [module for module in model.modules() if loaded and isinstance(module, loaded.FSDPModule)]
    for module in sharded:
        module.reshard()
    return sharded


class SynchronisedBatches:
    """The batches of this process. With a sharded model, it repeats the last one until every process has read all of its own.

    Every forward pass of a sharded model needs all processes. `repeating` is True while a batch is repeated.
    """

    def __init__(self, batches: Iterable[Any], *, sharded: bool) -> None:
        self._batches, self._sharded, self.repeating = batches, sharded, False

    def __iter__(self) -> Iterator[Any]:
        return self._together() if self._sharded else iter(self._batches)

    def _together(self) -> Iterator[Any]:
        last, failure, series = ENDED, None, iter(self._batches)
        while True:
            try:
                batch = next(series, ENDED)
            except Exception as error:
                batch, failure = ENDED, error  # raised below: the other processes wait for this one
            self.repeating = batch is ENDED
            last = last if self.repeating else batch
            running, without = summed(
                torch.tensor([int(not self.repeating), int(failure is not None or last is ENDED)], device="cpu")
            ).tolist()
            if failure is not None:
                raise failure
            if without and running:
                raise RuntimeError(
                    f"{without} rank(s) have no batch or failed to read one. Each forward pass of a sharded model needs all "
                    "ranks: give every rank at least one batch."
                )
            if not running:
                return
            yield last
