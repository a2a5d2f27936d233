"""Refuses and reports mistakes that would let a model forget unnoticed."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..record.recorder import ConsolidationError, Grams, call, eager_eval, inputs_left_out
from ..report import Verification
from ..subspaces.subspace import Subspace
from ..weights.discovery import Protection
from ..weights.distributed import reshard
from ..weights.lora import Adapter, merge
from ..weights.protected import ProtectedWeight
from .probe import Probe
from .trial import Found, change_of, percent, restored

if TYPE_CHECKING:
    from ..gpm import GPM

SUSPICIOUS = 0.01  # a larger leak means that steps bypassed the memory
INCONCLUSIVE = "Whether the memory covers every use of the weights could not be tested on this model: {}."
RANDOM = (
    "The model's outputs are random in eval mode: dropout or noise stays on. The memory holds the inputs of the passes that "
    "were recorded, and others will drift. Switch the randomness off in eval mode, or consolidate several passes."
)
FAST_PATH = (
    "In eval mode torch's fused path for padded sequences gives different outputs from the modules of this "
    "TransformerEncoder, and the memory holds what the modules compute. Build the encoder with enable_nested_tensor=False, "
    "or ignore the outputs at padded positions."
)
LEAKS = (
    "In this task, these layers changed inside the subspaces of earlier tasks: {names}. They may have forgotten. Attach every "
    "optimizer that trains them, or call project() and restore() around your own steps."
)
MOVING_BUFFERS = (
    "The forward pass reads buffers or fixed parameters that training changes and nothing protects: {}. Later tasks will "
    'change old outputs through them. Make the memory with unsupported="freeze" to keep their modules in eval mode after the '
    "first task, stop your own code from changing them, or exclude them by name."
)
FULL = (
    "These layers are full and cannot change any more: {}. All their input directions are remembered. A lower threshold or a "
    "wider layer would leave room for more tasks."
)
SWITCHED = (
    "{} used the statistics of the batch in eval mode, because of an own train(). From now on they use their running "
    'statistics, so the outputs differ. Make the memory with norm="free" to keep the batch statistics.'
)
FULL_ADAPTER = ' B of a LoRA adapter has only r input directions: GPM(model, lora="inputs") needs no memory of them.'
UNCOVERED = (
    "These weights are used in ways that their rule does not cover: {}. They were changed only in directions that no "
    "recorded input uses, and the outputs still moved, so later tasks would move old outputs. Call the layer itself instead "
    "of a function with its weight, correct its rule (register_layer), exclude the layer, or make the memory with "
    'unsupported="freeze" to hold the weight fixed after the first task or "free" to accept that. Nothing was remembered.'
)
MERGES = (
    "Merging the LoRA adapter into the weight of these layers would move the outputs: {}. The forward pass also reads that "
    "weight outside of the layer. Call the layer itself, or take the layer out of target_modules. Nothing was remembered."
)
UNSEEN = (
    "{} got gradients in this task, but the forward pass never called the layer, so its inputs are unknown. Call the layer "
    "itself (not a function with its weight), pass a forward= that reaches it, or exclude it. Nothing was remembered."
)
UNREACHED = (
    "The memory holds no inputs of {} for this task: it got gradients, but these batches do not reach it, and the outputs do "
    "not depend on it. If other inputs of the task do reach it (another head or expert), consolidate with those too."
)
IGNORED = (
    "The memory recorded model(batch[0]), but the batch has more tensors and forward takes more inputs ({}). If your loop "
    "passes them, the layers see inputs that were not recorded: pass forward=lambda model, batch: … that does the same."
)
COARSE = (
    "The sketch of {} is too small: it misses more than 1−ε of the inputs' energy. All directions in it were remembered, "
    "and they may hold less than the threshold asks for. Make the memory with a larger sketch=, or without one."
)


def check_model(protection: Protection) -> None:
    """Refuses a model whose protected parameters were replaced (a new head, a swapped layer) or have another shape."""
    if protection.sharded:
        reshard(protection.model)
    present = set(protection.model.parameters())
    protected = [(weight.name, parameter) for weight in protection.weights for parameter in weight.parameters]
    for name, parameter in [*protected, *protection.frozen.items()]:
        if parameter not in present:
            raise RuntimeError(
                f"The parameters of {name!r} were replaced after the memory was made. Make a new memory for the model as "
                "it is now (GPM.load loads saved bases into it)."
            )
        if parameter.shape != (then := protection.shapes[parameter]):
            raise RuntimeError(
                f"The parameters of {name!r} had the shape {tuple(then)} when the memory was made, and have "
                f"{tuple(parameter.shape)} now. Exclude a head that grows, and make a new memory for the model as it is now."
            )


def refuse(probe: Probe, protection: Protection, grams: Grams, stepped: Collection[Tensor]) -> tuple[Found, list[str]]:
    """Refuses weights with uncovered uses, and LoRA adapters that cannot be merged.

    Returns:
        The weights to fix instead of refusing them (with unsupported="freeze"), and the names of the trained weights without
        inputs, on which the outputs do not depend.
    """
    if protection.sharded:
        probe.share_examples()
    unseen = [weight for weight in protection.weights if not grams[weight.name].count]
    trained = [weight for weight in unseen if any(p in stepped for p in weight.parameters)]
    found = {} if protection.unsupported == "free" else probe.uncovered(unseen=trained)
    fixed, uncovered = (found, {}) if protection.unsupported == "freeze" else ({}, found)
    trained = [weight for weight in trained if weight not in fixed]
    if read := [repr(weight.name) for weight in trained if weight in uncovered or probe.inconclusive]:
        raise ConsolidationError(UNSEEN.format(", ".join(read)))
    if uncovered:
        named = [f"{w.name!r} ({type(w.sites[0].module).__name__}, {percent(by)})" for w, by in uncovered.items()]
        raise ConsolidationError(UNCOVERED.format(", ".join(named)))
    if protection.adapters and protection.unsupported != "free":
        refuse_merges(protection.adapters, probe)
    return fixed, [repr(weight.name) for weight in trained]


@torch.no_grad()
def refuse_merges(adapters: Sequence[Adapter], probe: Probe) -> None:
    """Refuses LoRA adapters whose merging moves the outputs: something else than their layer reads its weight."""

    def shows(merged: Sequence[Adapter]) -> bool:
        with restored([tensor for adapter in merged for tensor in (adapter.base, adapter.up)]):
            for adapter in merged:
                merge(adapter)
            return change_of(before, probe.outputs()) > probe.rounding

    if probe.examples is None or probe.inconclusive:
        return
    before = probe.outputs()
    if shows(adapters):
        names = {module: name for name, module in probe.model.named_modules()}
        raise ConsolidationError(MERGES.format(", ".join(repr(names[a.layer]) for a in adapters if shows([a]))))


def warn(
    memory: GPM,
    probe: Probe,
    grown: Sequence[tuple[ProtectedWeight, list[Subspace], int]],
    moving: Sequence[str],
    unreached: Sequence[str],
    coarse: Sequence[str],
) -> None:
    """Warns the code that called `GPM.consolidate` about everything that was found."""
    full = [weight.name for weight, _, count in grown if weight.rank < weight.capacity == weight.rank + count]
    moved = Verification((*memory._constraint.checks(), *memory._buffers.checks([probe])), SUSPICIOUS)
    buffers = moving if memory._protection.unsupported == "error" else []
    left_out = inputs_left_out(probe.model, probe.examples) if probe.forward is call else []
    with eager_eval(probe.model):
        norms = {} if memory._tasks else memory._protection.norms
        switched = [name for name, norm in norms.items() if norm.training and next(norm.buffers(), None) is not None]
    messages = [
        INCONCLUSIVE.format(probe.inconclusive) if probe.inconclusive else "",
        RANDOM if probe.is_random else "",
        FAST_PATH if not probe.inconclusive and probe.fast_path_differs() else "",
        SWITCHED.format(", ".join(map(repr, switched))) if switched else "",
        moved.leaks(LEAKS),
        MOVING_BUFFERS.format(", ".join(map(repr, buffers))) if buffers else "",
        FULL.format(", ".join(full)) + FULL_ADAPTER * any("lora_B" in name for name in full) if full else "",
        UNREACHED.format(", ".join(unreached)) if unreached else "",
        IGNORED.format(", ".join(left_out)) if left_out else "",
        COARSE.format(", ".join(coarse)) if coarse else "",
    ]
    for message in filter(None, messages):
        warnings.warn(message, stacklevel=4)
