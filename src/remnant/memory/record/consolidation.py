"""Remembering a task (Algorithm 1, lines 13–22): records its inputs in all processes, then grows every subspace."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConsolidationError
from ..patterns import by_layer
from ..protected import ProtectedWeight
from ..subspace import Subspace
from . import batches as batch_streams
from . import distributed, recorder
from .batches import Forward
from .recorder import Grams

Grown = list[tuple[ProtectedWeight, list[Subspace], int]]  # weight, its new subspaces, the number of added directions


def gather(
    model: nn.Module,
    weights: list[ProtectedWeight],
    batches: Any,
    *,
    samples: int | None,
    layer_samples: Mapping[str, int] | None,
    forward: Forward,
    task: int,
) -> Grams:
    """Records the Gram matrix of every weight's inputs over a task's batches, summed over all processes (lines 14–16)."""
    layer_samples = layer_samples or {}
    options = {"samples": samples, **{f"layer_samples[{name!r}]": count for name, count in layer_samples.items()}}
    for option, value in options.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"{option} is {value!r}: it must be a positive whole number, or None for all.")
    examples = by_layer(layer_samples, [weight.name for weight in weights], "layer_samples")
    rank, ranks = distributed.world()
    stream = batch_streams.stream(batches)
    if samples is not None:
        share = samples // ranks + (rank < samples % ranks)
        stream = batch_streams.sample(stream, share, seed=task * ranks + rank)
    failure: Exception | None = None
    grams: Grams = {}
    count = 0
    try:
        grams, count = recorder.record(model, weights, stream, forward, examples)
    except Exception as error:
        failure = error  # raised below: the other processes must know first, since they wait for this one
    failures = int(distributed.summed(torch.tensor(int(failure is not None))))
    if failure is not None:
        raise failure
    if failures:
        raise ConsolidationError(f"{failures} other rank(s) failed to record the task; see their errors.")
    if not distributed.summed(torch.tensor(count)):
        raise ConsolidationError("There were no batches: nothing was remembered. Is the loader empty or used up?")
    for gram in grams.values():
        distributed.add_up(gram)
    if grams and not any(gram.count for gram in grams.values()):
        raise ConsolidationError(
            "No protected layer got a single example: nothing was remembered. Are the batches empty, and does the forward "
            "pass reach the layers?"
        )
    bad = [name for name, gram in grams.items() if not bool(torch.isfinite(gram.matrix()).all())]
    if bad:
        raise ConsolidationError(
            f"Inputs of {', '.join(map(repr, bad))} contain NaN or inf. Nothing was remembered. Check the data and whether "
            "training diverged, then consolidate again."
        )
    return grams


def check_all_seen(weights: list[ProtectedWeight], grams: Grams, stepped: Collection[Tensor]) -> None:
    """Refuses a trained layer without inputs. An untrained one is unused in this task and has nothing to remember."""
    unseen = [weight for weight in weights if not grams[weight.name].count]
    trained = [weight.name for weight in unseen if any(parameter in stepped for parameter in weight.parameters)]
    if trained:
        raise ConsolidationError(
            f"{', '.join(map(repr, trained))} got gradients in this task, but the forward pass never called the layer, so "
            "its inputs are unknown. Call the layer itself (not a function with its weight), pass a forward= that reaches "
            "it, or exclude it. Nothing was remembered."
        )


def grow(
    weights: list[ProtectedWeight],
    grams: Grams,
    thresholds: Mapping[str, float],
    rank_rule: str,
    fixed: Collection[ProtectedWeight] = (),
) -> Grown:
    """Returns grown copies of every weight's subspaces (lines 17–21; Eq. 5, 8, 9), the same in all processes.

    `fixed` weights must not move at all, so their subspaces are filled.
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
                count += new.grow(grams[weight.name].energy(group), thresholds[weight.name], rank_rule)
            distributed.make_identical(new)
            subspaces.append(new)
        grown.append((weight, subspaces, count))
    return grown
