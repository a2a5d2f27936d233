"""Remembering a task (Algorithm 1, lines 14–22), completely or not at all.

`remember` records the task's inputs in all processes (`gather`), grows every subspace (`grow`) and starts the next task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..audit import preconditions as checks
from ..audit.probe import Probe
from ..audit.state import shorten_rows
from ..recall.loss import Loss
from ..subspaces.subspace import Subspace
from ..subspaces.threshold import by_layer
from ..weights import lora, own_parts
from ..weights.discovery import Protection
from ..weights.distributed import SynchronisedBatches, from_process, object_from_process, summed, world
from ..weights.protected import ProtectedWeight, Weights
from . import recorder
from .batches import each_batch, sample
from .inputs import Growth, TaskInputs
from .recorder import ConsolidationError, Examples, Forward, Grams, Sinks

if TYPE_CHECKING:
    from ..gpm import GPM

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called")
ROUNDING = 1e-9  # share of the energy
Grown = list[tuple[ProtectedWeight, list[Subspace], int]]  # weight, its new subspaces, the number of added directions


def remember(
    memory: GPM,
    batches: Any,
    samples: int | None,
    layer_samples: Mapping[str, int],
    *,
    forward: Forward,
    anchors: dict[Tensor, Tensor],
    loss: Loss | None,
) -> dict[str, int]:
    """Grows all subspaces by a task's inputs and starts the next task with these anchors; see `GPM.consolidate`."""
    weights, task = memory._protection.weights, memory._tasks
    loss_as_trained = memory._recalling().mean_loss(batches, forward, loss) if loss else 0.0
    thresholds = {weight.name: memory._threshold(weight.name, task) for weight in weights}
    probe = Probe(memory._protection, forward)
    # Lines 14–16: a forward pass constructs the representation matrix R of each layer; here, its Gram matrix.
    grams = gather(memory._protection, batches, task, samples, layer_samples, forward=probe.forward_keeping_examples)
    fixed, unreached = checks.refuse(probe, memory._protection, grams, memory._constraint.stepped)
    moving = memory._buffers.moving(probe, trained=bool(memory._constraint.stepped))
    # Lines 17–22: for each layer, remove the part of R inside M, choose k directions of the rest, and add them to M.
    grown = grow(weights, grams, thresholds, memory._growth or memory._rank_rule, fixed)
    coarse = too_coarse(weights, grams, thresholds) if memory._settings["sketch"] else []
    checks.warn(memory, probe, grown, moving, unreached, coarse)
    record = memory._recall.record(grown, grams, thresholds, probe) if memory._recall else None
    _begin_next_task(memory, grown, anchors, moving)  # all above may still refuse the task
    if not task:
        probe.before = None  # a norm whose own train() kept it from eval mode is in it from now on
    memory._verifier.remember(task, probe)
    if memory._recall and record:
        memory._recall.add(record)
        if loss:
            memory._recall.add_truncation(loss_as_trained, memory._recall.mean_loss(batches, forward, loss, task))
    if memory._protection.own_parts:
        own_parts.restart(memory._protection.own_parts, memory._tasks, memory._constraint.optimizers)
    return {weight.name: count for weight, _, count in grown}


def _begin_next_task(memory: GPM, grown: Grown, anchors: dict[Tensor, Tensor], moving: list[str]) -> None:
    """Replaces the subspaces by the grown ones, and takes today's weights as W₀."""
    weights, adapters = memory._protection.weights, memory._protection.adapters
    for weight, subspaces, count in grown:
        weight.adopt(subspaces, [*weight.added, count] if count >= 0 else _without(weight.added, -count))
    memory._tasks += 1
    shorten_rows(memory._protection)
    # The forward pass may have changed weights, by clamping them for example. The outputs are those of the changed ones.
    anchors = {p: x if torch.equal(p, x) else p.detach().clone() for p, x in anchors.items()}
    if adapters:
        lora.restart(adapters, weights, memory._tasks)
        anchors = {}  # the next task trains other adapters, so `begin_task` copies the weights again
    memory._constraint.begin_task(anchors)
    memory._buffers.begin_task(moving)


def _without(added: list[int], count: int) -> list[int]:
    """How many directions each task still has after a rule has removed `count` of them, the latest tasks' first."""
    kept: list[int] = []
    for each in added:
        kept.append(min(each, sum(added) - count - sum(kept)))
    return [*kept, 0]


@contextmanager
def all_or_nothing(memory: GPM) -> Iterator[dict[Tensor, Tensor]]:
    """Restores the memory and its model if the block raises any exception, including KeyboardInterrupt.

    References to the old values of attributes are enough, because the block replaces these values and never changes them.
    The block gets copies of the protected and frozen parameters, which become the anchors of the next task.
    """
    parts = [memory, memory._constraint, memory._buffers, memory._verifier, *memory._protection.weights]
    attributes = [(part, dict(vars(part))) for part in [*parts, *([memory._recall] if memory._recall else [])]]
    modules = [
        (module, dict(vars(module)), {h: list(vars(module)[h]) for h in HOOKS}) for module in memory._model.modules()
    ]
    weights = {parameter: parameter.detach().clone() for parameter in memory._protection.parameters}
    merged = [adapter.base for adapter in memory._protection.adapters]
    own = [parameter for part in memory._protection.own_parts for parameter in part.parameters()]
    others = {tensor: tensor.detach().clone() for tensor in [*memory._model.buffers(), *merged, *own]}
    # An interrupt between the end of a `with` block and its exit would leave torch's switches as the block set them.
    fastpath, gradients, random = (
        torch.backends.mha.get_fastpath_enabled(),
        torch.is_grad_enabled(),
        torch.get_rng_state(),
    )
    try:
        yield weights
    except BaseException:
        for part, values in attributes:
            vars(part).update(values)
        for module, values, hooks in modules:
            for name in vars(module).keys() - values.keys():
                del vars(module)[name]
            vars(module).update(values)
            for kind, present in hooks.items():
                for key in vars(module)[kind].keys() - set(present):
                    del vars(module)[kind][key]
        with torch.no_grad():
            for tensor, value in {**weights, **others}.items():
                tensor.copy_(value)
        torch.backends.mha.set_fastpath_enabled(fastpath)
        torch.set_grad_enabled(gradients)
        torch.set_rng_state(random)
        raise


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
    series = each_batch(batches)
    if samples is not None:
        share = samples // ranks + (rank < samples % ranks)
        series = sample(series, share, seed=task * ranks + rank)
    if world()[1] > 1:  # each process has its own running statistics until DistributedDataParallel's next forward pass
        for buffer in protection.model.buffers():
            buffer.copy_(from_process(0, buffer))
    grams = recorder.empty_grams(protection.weights)
    sinks: Sinks = {weight: grams[weight.name].add for weight in protection.weights}
    if protection.sharded:
        synchronised = SynchronisedBatches(series, sharded=True)
        series, sinks = iter(synchronised), sinks_for_own_batches(grams, protection, synchronised)
    count = 0
    failure: Exception | None = None
    try:
        count = recorder.record_rows(protection.model, sinks, series, forward, examples)
    except Exception as error:
        failure = error  # raised below: the other processes must know first, since they wait for this one
    failures, count = summed(torch.tensor([failure is not None, count], device="cpu")).tolist()
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


def sinks_for_own_batches(grams: Grams, protection: Protection, batches: SynchronisedBatches) -> Sinks:
    """Returns sinks that add rows to the Grams, except those of a batch that this process repeats for the others."""

    def add(name: str, rows: Tensor) -> None:
        if not batches.repeating:
            grams[name].add(rows)

    return {weight: partial(add, weight.name) for weight in protection.weights}


def share_grams(grams: Grams) -> None:
    """Sums the Grams over all processes."""
    for gram in grams.values():
        gram.replace(summed(gram.matrix()), int(summed(torch.tensor(gram.count, device="cpu"))))


def grow(
    weights: Weights,
    grams: Grams,
    thresholds: Mapping[str, float],
    rule: str | Growth,
    fixed: Collection[ProtectedWeight],
) -> Grown:
    """Returns grown copies of all subspaces (Algorithm 1, lines 17–22); those of `fixed` weights are filled.

    With several processes, each of them grows some of the subspaces and sends them to the others.
    """
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
                subspace.grow(gram.of_group(group), threshold, rule)
            else:
                rule(TaskInputs(weight.name, subspace, gram.of_group(group), gram.count), threshold)
            if ranks > 1:
                _share(subspace, number % ranks)
        grown.append((weight, subspaces, sum(subspace.rank for subspace in subspaces) - before))
    return grown


def too_coarse(weights: Weights, grams: Grams, thresholds: Mapping[str, float]) -> list[str]:
    """Names the layers whose sketch lacks more than 1 − ε of the energy, which the processes tell each other."""
    lacking = summed(
        torch.tensor([int(grams[w.name].missing > 1 - thresholds[w.name] + ROUNDING) for w in weights], device="cpu")
    )
    return [weight.name for weight, count in zip(weights, lacking.tolist(), strict=True) if count]


def _share(subspace: Subspace, source: int) -> None:
    """Gives every process the directions that one of them has found."""
    state = subspace.state()
    forms = object_from_process(source, {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()})
    device, mine = next(iter(state.values())).device, world()[0] == source
    empty = {name: torch.empty(shape, dtype=dtype, device=device) for name, (shape, dtype) in forms.items()}
    subspace.load({name: from_process(source, state[name] if mine else empty[name]) for name in forms})
