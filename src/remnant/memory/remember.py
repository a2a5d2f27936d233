"""Remembers a task (Algorithm 1, lines 13–22), completely or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import lora
from .audit import preconditions as checks
from .audit.probe import Probe
from .audit.state import renormalised
from .loss import Loss
from .record import consolidation
from .record.recorder import Forward
from .report import Verification

if TYPE_CHECKING:
    from .gpm import GPM

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called")
SUSPICIOUS = 0.01  # a larger leak means that steps bypassed the memory


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
    grams = consolidation.gather(memory._protection, batches, task, samples, layer_samples, forward=probe.remembering)
    if memory._protection.sharded:
        probe.share_examples()
    uncovered = {} if memory._unsupported == "free" else probe.uncovered()
    fixed = uncovered if memory._unsupported == "freeze" else {}
    refused = uncovered if memory._unsupported == "error" else {}
    stepped, held = memory._constraint.stepped, [weight for weight in weights if weight not in fixed]
    unreached = checks.refuse(probe, held, grams, stepped, refused)
    moving = memory._buffers.moving(probe, trained=bool(stepped))
    grown = consolidation.grow(weights, grams, thresholds, memory._growth or memory._rank_rule, fixed)
    full = [w.name for w, grown_to, _ in grown if w.rank < w.capacity and all(s.full for s in grown_to)]
    unprotected = moving if memory._unsupported == "error" else []
    moved = Verification((*memory._constraint.checks(), *memory._buffers.checks(probe)), SUSPICIOUS)
    sketched = [weight for weight in weights if weight.sketch]
    coarse = consolidation.too_coarse(sketched, grams, thresholds) if sketched else []
    checks.warn(probe, moved, unprotected, full, unreached, coarse)
    record = memory._recall.record(grown, grams, thresholds, probe) if memory._recall else None
    for weight, subspaces, count in grown:
        weight.adopt(subspaces, [*weight.added, count] if count >= 0 else _without(weight.added, -count))
    memory._tasks += 1
    anchors = {**anchors, **{p: p.detach().clone() for p in renormalised(memory._protection) if p in anchors}}
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
    others = {tensor: tensor.detach().clone() for tensor in [*memory._model.buffers(), *merged]}
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
