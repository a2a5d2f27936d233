"""Remembering a task (Algorithm 1, lines 13–22): records its inputs in all processes, then grows every subspace."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..discovery import Protection
from ..protected import ProtectedWeight, Weights
from ..subspace import Subspace
from ..threshold import by_layer
from . import batches as series
from . import recorder
from .recorder import ConsolidationError, Examples, Forward, Grams

Grown = list[tuple[ProtectedWeight, list[Subspace], int]]  # weight, its new subspaces, the number of added directions


def gather(
    protection: Protection, batches: Any, task: int, samples: int | None, layer_samples: Examples, forward: Forward
) -> Grams:
    """Records the Gram matrix of every weight's inputs over a task's batches, summed over all processes (lines 14–16)."""
    options = {"samples": samples, **{f"layer_samples[{name!r}]": count for name, count in layer_samples.items()}}
    for option, value in options.items():
        if value is not None and (type(value) is not int or value < 1):
            raise ValueError(f"{option} is {value!r}: it must be a positive whole number, or None for all.")
    examples = by_layer(layer_samples, [weight.name for weight in protection.weights], "layer_samples")
    rank, ranks = world()
    stream = series.stream(batches)
    if samples is not None:
        share = samples // ranks + (rank < samples % ranks)
        stream = series.sample(stream, share, seed=task * ranks + rank)
    if ranks > 1:  # each process has its own running statistics until DistributedDataParallel's next forward pass
        for buffer in protection.model.buffers():
            same = buffer.to(_shared_device()).contiguous()
            dist.broadcast(same, src=0)
            buffer.copy_(same)
    grams = recorder.empty_grams(protection.weights)
    sinks = {weight: grams[weight.name].add for weight in protection.weights}
    count = 0
    failure: Exception | None = None
    try:
        count = recorder.record_rows(protection.model, sinks, stream, forward, examples)
    except Exception as error:
        failure = error  # raised below: the other processes must know first, since they wait for this one
    failures, count = summed(torch.tensor([failure is not None, count])).tolist()
    if failure is not None:
        raise failure
    if failures:
        raise ConsolidationError(f"{failures} other rank(s) failed to record the task; see their errors.")
    if not count:
        raise ConsolidationError("There were no batches: nothing was remembered. Is the loader empty or used up?")
    if ranks > 1:
        for gram in grams.values():
            gram.replace(summed(gram.matrix()), int(summed(torch.tensor(gram.count))))
    if grams and not any(gram.count for gram in grams.values()):
        raise ConsolidationError(
            f"None of the protected layers ({', '.join(map(repr, grams))}) got a single example: nothing was remembered. Are "
            "the batches empty, and does the forward pass call the layers?"
        )
    if bad := [repr(name) for name, gram in grams.items() if not gram.is_finite()]:
        raise ConsolidationError(
            f"Inputs of {', '.join(bad)} contain NaN or inf. Nothing was remembered. Check the data and whether training "
            "diverged, then consolidate again."
        )
    return grams


def grow(
    weights: Weights, grams: Grams, thresholds: Mapping[str, float], rule: str, fixed: Collection[ProtectedWeight]
) -> Grown:
    """Returns grown copies of all subspaces (lines 17–21), the same in all processes; those of `fixed` weights are full."""
    grown: Grown = []
    for weight in weights:
        subspaces, count = [subspace.copy(weight.view.weight.device) for subspace in weight.subspaces], 0
        for group, subspace in enumerate(subspaces):
            if weight in fixed:
                count += subspace.fill()
            else:
                count += subspace.grow(grams[weight.name].energy(group), thresholds[weight.name], rule)
            if world()[1] > 1:  # hardware may round an eigenvector differently, so all take the directions of rank 0
                shared = [{name: tensor.cpu() for name, tensor in subspace.state().items()}]
                dist.broadcast_object_list(shared, src=0, device=_shared_device())
                subspace.load(shared[0])
        grown.append((weight, subspaces, count))
    return grown


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


def _shared_device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
