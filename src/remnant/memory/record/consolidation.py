"""Remembering a task (Algorithm 1, lines 13–22), completely or not at all.

`remember` records the task's inputs in all processes (`gather`), grows every subspace (`grow`) and starts the next task.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..audit import preconditions as checks
from ..audit.probe import Probe
from ..audit.state import shorten_rows
from ..recall.loss import Loss
from ..report import Verification
from ..subspaces.subspace import Subspace
from ..subspaces.threshold import by_layer
from ..weights import lora, own_parts
from ..weights.discovery import Protection
from ..weights.distributed import InStep, from_process, object_from_process, summed, world
from ..weights.protected import ProtectedWeight, Weights
from . import batches as series
from . import recorder
from .recorder import ConsolidationError, Examples, Forward, Grams, Sinks

if TYPE_CHECKING:
    from ..gpm import GPM

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called")
SUSPICIOUS = 0.01  # a larger leak means that steps bypassed the memory
ROUNDING = 1e-9  # share of the energy
# Changes a subspace, given its weight, the Gram matrices of all groups, the number of its group, and the threshold.
Growth = Callable[[ProtectedWeight, Subspace, Any, int, float], None]
Grown = list[tuple[ProtectedWeight, list[Subspace], int]]  # weight, its new subspaces, the number of added directions


def remember(
    memory: GPM,
    batches: Any,
    samples: int | None,
    layer_samples: Mapping[str, int],
    forward: Forward,
    anchors: dict[Tensor, Tensor],
    loss: Loss | None,
) -> dict[str, int]:
    """Grows all subspaces by a task's inputs and starts the next task with these anchors; see `GPM.consolidate`."""
    weights, task = memory._protection.weights, memory._tasks
    trained = memory._recalling().mean_loss(batches, forward, loss) if loss else 0.0
    thresholds = {weight.name: memory._threshold(weight.name, task) for weight in weights}
    probe = Probe(memory._protection, forward)
    grams = gather(memory._protection, batches, task, samples, layer_samples, forward=probe.remembering)
    if memory._protection.sharded:
        probe.share_examples()
    uncovered = {} if memory._unsupported == "free" else probe.uncovered()
    fixed = uncovered if memory._unsupported == "freeze" else {}
    refused = uncovered if memory._unsupported == "error" else {}
    stepped, held = memory._constraint.stepped, [weight for weight in weights if weight not in fixed]
    unreached = checks.refuse(probe, held, grams, stepped, refused)
    if memory._protection.adapters and memory._unsupported != "free":
        checks.refuse_merges(memory._protection.adapters, probe)
    moving = memory._buffers.moving(probe, trained=bool(stepped))
    grown = grow(weights, grams, thresholds, memory._growth or memory._rank_rule, fixed)
    full = [weight.name for weight, _, count in grown if weight.rank < weight.capacity == weight.rank + count]
    unprotected = moving if memory._unsupported == "error" else []
    moved = Verification((*memory._constraint.checks(), *memory._buffers.checks(probe)), SUSPICIOUS)
    sketched = [weight for weight in weights if weight.sketch]
    coarse = too_coarse(sketched, grams, thresholds) if sketched else []
    checks.warn(probe, moved, unprotected, full, unreached, coarse)
    record = memory._recall.record(grown, grams, thresholds, probe) if memory._recall else None
    for weight, subspaces, count in grown:  # from here on the memory changes; all before may still refuse the task
        weight.adopt(subspaces, [*weight.added, count] if count >= 0 else _without(weight.added, -count))
    memory._tasks += 1
    shorten_rows(memory._protection)
    # The forward pass may have changed weights, by clamping them for example. The outputs are those of the changed ones.
    anchors = {p: x if torch.equal(p, x) else p.detach().clone() for p, x in anchors.items()}
    if memory._protection.adapters:
        lora.restart(memory._protection.adapters, weights, memory._tasks)
        anchors = {}  # the weights of the next task are other ones
    memory._constraint.begin_task(anchors)
    memory._buffers.begin_task(moving)
    memory._verifier.remember(task, probe)
    if memory._recall and record:
        memory._recall.add(record)
        if loss:
            memory._recall.add_truncation(trained, memory._recall.mean_loss(batches, forward, loss, task))
    if memory._protection.own_parts:
        own_parts.restart(memory._protection.own_parts, memory._tasks, memory._constraint.optimizers)
    return {weight.name: count for weight, _, count in grown}


def _without(added: list[int], count: int) -> list[int]:
    """The directions of each task, and none of one more whose rule has let `count` go. The last tasks lose them."""
    kept: list[int] = []
    for each in added:
        kept.append(min(each, sum(added) - count - sum(kept)))
    return [*kept, 0]


@contextmanager
def all_or_nothing(memory: GPM) -> Iterator[dict[Tensor, Tensor]]:
    """Gives the memory and its model back their state if the block ends by any exception, an interrupt included.

    The block replaces attributes and never changes what they hold, so that references to the old values are enough. It gets
    copies of the protected and frozen parameters, which serve as the anchors of the next task if it succeeds.
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


def filling(grams: Grams, protection: Protection, batches: InStep) -> Sinks:
    """The sinks that add the rows of this process's own batches to the Grams."""

    def add(name: str, rows: Tensor) -> None:
        if batches.own:
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
