"""Remembering a task (Algorithm 1, lines 13–22): records its inputs in all processes, then grows every subspace."""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..discovery import Protection
from ..distributed import InStep, from_process, object_from_process, summed, world
from ..protected import ProtectedWeight, Weights
from ..subspace import Subspace
from ..threshold import by_layer
from . import batches as series
from . import recorder
from .recorder import ConsolidationError, Examples, Forward, Grams, Sinks

ROUNDING = 1e-9  # share of the energy
# Changes a subspace, given its weight, the Gram matrices of all groups, the number of its group, and the threshold.
Growth = Callable[[ProtectedWeight, Subspace, Any, int, float], None]
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
    rank, ranks = (0, 1) if protection.parallel else world()  # with tensor parallelism, all see the same data
    stream = series.stream(batches)
    if samples is not None:
        share = samples // ranks + (rank < samples % ranks)
        stream = series.sample(stream, share, seed=task * ranks + rank)
    if world()[1] > 1:  # each process has its own running statistics until DistributedDataParallel's next forward pass
        for buffer in protection.model.buffers():
            buffer.copy_(from_process(0, buffer))
    grams = recorder.empty_grams(protection.weights)
    sinks: Sinks = {weight: grams[weight.name].add for weight in protection.weights}
    turns: Iterable[Any] = stream
    if protection.sharded:
        turns = together = InStep(stream, sharded=True)
        sinks = filling(grams, protection, together)
    count = 0
    failure: Exception | None = None
    try:
        count = recorder.record_rows(protection.model, sinks, turns, forward, examples)
    except Exception as error:
        failure = error  # raised below: the other processes must know first, since they wait for this one
    failures, count = summed(torch.tensor([failure is not None, count])).tolist()
    if failure is not None:
        raise failure
    if failures:
        raise ConsolidationError(f"{failures} other rank(s) failed to record the task; see their errors.")
    if not count:
        raise ConsolidationError("There were no batches: nothing was remembered. Is the loader empty or used up?")
    if world()[1] > 1:
        share_grams(grams)
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


def filling(grams: Grams, protection: Protection, batches: InStep) -> Sinks:
    """The sinks that add the rows of this process's own batches to the Grams."""

    def add(name: str, rows: Tensor) -> None:
        if batches.own:
            grams[name].add(rows)

    return {weight: partial(add, weight.name) for weight in protection.weights}


def share_grams(grams: Grams) -> None:
    """Sums the Grams over all processes."""
    for gram in grams.values():
        gram.replace(summed(gram.matrix()), int(summed(torch.tensor(gram.count))))


def grow(
    weights: Weights,
    grams: Grams,
    thresholds: Mapping[str, float],
    rule: str | Growth,
    fixed: Collection[ProtectedWeight],
) -> Grown:
    """Returns grown copies of all subspaces (lines 17–21), those of `fixed` weights full. Processes take turns and share."""
    grown: Grown = []
    rank, ranks = world()
    for number, weight in enumerate(weights):
        subspaces = [subspace.copy(weight.view.weight.device) for subspace in weight.subspaces]
        gram, threshold = grams[weight.name], thresholds[weight.name]
        before = sum(subspace.rank for subspace in subspaces)
        for group, subspace in enumerate(subspaces):
            if rank != number % ranks:
                pass
            elif weight in fixed:
                subspace.fill()
            elif isinstance(rule, str):
                subspace.grow(gram.energy(group), threshold, rule)
            else:
                rule(weight, subspace, gram, group, threshold)
            if ranks > 1:
                _share(subspace, number % ranks)
        grown.append((weight, subspaces, sum(subspace.rank for subspace in subspaces) - before))
    return grown


def too_coarse(weights: Weights, grams: Grams, thresholds: Mapping[str, float]) -> list[str]:
    """Names the layers whose sketch lacks more than 1 − ε of the energy. A process knows about those that it has grown."""
    lacking = summed(torch.tensor([int(grams[w.name].missing > 1 - thresholds[w.name] + ROUNDING) for w in weights]))
    return [weight.name for weight, count in zip(weights, lacking.tolist(), strict=True) if count]


def _share(subspace: Subspace, source: int) -> None:
    """Gives every process the directions that one of them has found."""
    state = subspace.state()
    forms = object_from_process(source, {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()})
    device, mine = next(iter(state.values())).device, world()[0] == source
    empty = {name: torch.empty(shape, dtype=dtype, device=device) for name, (shape, dtype) in forms.items()}
    subspace.load({name: from_process(source, state[name] if mine else empty[name]) for name in forms})
