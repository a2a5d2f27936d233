"""Remembering a task (Algorithm 1, lines 13–22): its inputs recorded over all ranks, then every basis grown."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor, nn

from ..errors import ConsolidationError
from ..patterns import by_layer
from ..protected import ProtectedWeight
from ..subspace import Subspace
from . import batches as batch_streams
from . import distributed, recorder
from .batches import Forward
from .recorder import Grams

Grown = list[tuple[ProtectedWeight, list[Subspace], int]]  # each weight with its new subspaces and how much they gained


def gather(
    model: nn.Module,
    weights: list[ProtectedWeight],
    batches: Any,
    *,
    samples: int | None,
    layer_samples: Mapping[str, int] | None,
    forward: Forward | None,
    task: int,
) -> Grams:
    """The Gram of every weight's inputs over one task's batches (or `samples` examples of them), all ranks together."""
    for what, value in {
        "samples": samples,
        **{f"layer_samples[{k!r}]": v for k, v in (layer_samples or {}).items()},
    }.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"{what} is {value!r}: it must be a positive whole number, or None for all.")
    examples = by_layer(layer_samples or {}, [weight.name for weight in weights], "layer_samples")
    rank, ranks = distributed.world()
    stream = batch_streams.stream(batches)
    if samples is not None:
        share = samples // ranks + (rank < samples % ranks)
        stream = batch_streams.sample(stream, share, seed=task * ranks + rank)
    failure: Exception | None = None
    grams: Grams = {}
    count = 0
    try:
        grams, count = recorder.record(model, weights, stream, forward or batch_streams.call, examples)
    except Exception as error:
        failure = error  # raised below, once the other ranks know: they wait for this one
    failures = distributed.total(int(failure is not None))
    if failure is not None:
        raise failure
    if failures:
        raise ConsolidationError(f"{failures} other rank(s) failed to record the task; see their errors.")
    if not distributed.total(count):
        raise ConsolidationError("There were no batches: nothing was remembered. Is the loader empty or used up?")
    for gram in grams.values():
        distributed.add_up(gram)
    if grams and not any(gram.count for gram in grams.values()):
        raise ConsolidationError(
            "No protected layer got a single example: nothing was remembered. Are the batches empty, and does the forward "
            "pass reach the layers?"
        )
    recorder.check(grams)
    return grams


def check_all_seen(weights: list[ProtectedWeight], grams: Grams, stepped: Collection[Tensor]) -> None:
    """A layer this task did not use has nothing to remember; one that was trained must have been seen."""
    unseen = [weight for weight in weights if not grams[weight.name].count]
    trained = [weight.name for weight in unseen if any(parameter in stepped for parameter in weight.parameters)]
    if trained:
        raise ConsolidationError(
            f"{', '.join(map(repr, trained))} got gradients in this task, but the forward pass never called the layer, so "
            "what it must remember is unknown. Call the layer itself (not a function with its weight), pass forward= so "
            "that it is reached, or exclude it. Nothing was remembered."
        )


def grow(
    weights: list[ProtectedWeight],
    grams: Grams,
    threshold: Callable[[str], float],
    rank_rule: str,
    fixed: Collection[ProtectedWeight] = (),
) -> Grown:
    """New subspaces for every weight (Eq. 5, 8, 9), the same on every rank; the present ones stay as they are.

    `fixed`: those that must not move at all, whatever their inputs were.
    """
    grown: Grown = []
    for weight in weights:
        subspaces, count = [], 0
        for group, subspace in enumerate(weight.subspaces):
            new = subspace.copy()
            new.to(weight.view.weight.device)
            if weight in fixed:
                count += new.fill()
            else:
                count += new.grow(grams[weight.name].energy(group), threshold(weight.name), rank_rule)
            distributed.same_everywhere(new)
            subspaces.append(new)
        grown.append((weight, subspaces, count))
    return grown
