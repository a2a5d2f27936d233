"""What a memory refuses and what it warns of: mistakes that would let a model forget unnoticed."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from ..discovery import Protection, Selection, clean
from .verification import LayerCheck, buffers_changed

SUSPICIOUS = 0.01  # a task whose steps leaked more than this was trained past the memory
OF_THE_CALLER = 3  # past the function here and the memory's own


def check_model(model: nn.Module, plan: Protection) -> None:
    """A parameter replaced by another object (a new head, a swapped layer) would no longer be the one protected."""
    present = {id(parameter) for parameter in model.parameters()}
    ours = [(weight.name, parameter) for weight in plan.weights for parameter in weight.parameters]
    for name, parameter in [*ours, *plan.frozen.items()]:
        if id(parameter) not in present:
            raise RuntimeError(
                f"The parameters of {name!r} were replaced since the memory was made. Make a new one for the model as it "
                "is (GPM.load takes over bases saved before)."
            )


def check_trains_protected(optimizer: Optimizer, plan: Protection) -> None:
    held = {p for group in optimizer.param_groups for p in group["params"]}
    if not held & _ours(plan):
        raise ValueError(
            "This optimizer holds none of the protected weights. Build it from the parameters of the model the memory "
            "was made for (after any wrapper that replaces them), then attach it."
        )


def check_nothing_open(optimizer: Optimizer, model: nn.Module, plan: Protection, selection: Selection) -> None:
    """It must train nothing that should be protected and is not: a layer that came or was unfrozen later."""
    held = {p for group in optimizer.param_groups for p in group["params"]}
    known = _ours(plan) | set(plan.free.values())
    for name, parameter in model.named_parameters():
        if parameter in held and parameter.requires_grad and parameter not in known and clean(name) in selection:
            raise ValueError(
                f"{name!r} was not there or not trainable when the memory was made, so it is not protected. Exclude it "
                "by a pattern (a new head may come at any time under one), or make a new memory."
            )


def _ours(plan: Protection) -> set[Tensor]:
    return {p for weight in plan.weights for p in weight.parameters} | set(plan.frozen.values())


def warn_of_full(layers: Sequence[str]) -> None:
    if layers:
        warnings.warn(
            f"Full, and from now on fixed: {', '.join(layers)}. Every input direction of the layer is remembered. A lower "
            "threshold or a wider layer would leave room for more tasks.",
            stacklevel=OF_THE_CALLER,
        )


def warn_of_leaks(checks: Iterable[LayerCheck]) -> None:
    leaking = [x for x in checks if x.leak > max(SUSPICIOUS, x.rounding)]
    said = []
    if weights := [f"{x.name} ({x.leak:.0%})" for x in leaking if not x.buffer]:
        said.append(
            f"In this task these layers changed inside what earlier tasks use: {', '.join(weights)}. They may have "
            "forgotten. Attach every optimizer that trains them, or call project() and restore() around a hand-written step."
        )
    if buffers := [x.name for x in leaking if x.buffer]:
        said.append(buffers_changed(buffers))
    if said:
        warnings.warn(" ".join(said), stacklevel=OF_THE_CALLER)


def warn_of_moving_buffers(names: Sequence[str]) -> None:
    if names:
        named = ", ".join(map(repr, names))
        warnings.warn(
            f"The forward pass reads buffers that training changes and that nothing holds: {named}. Later tasks will move "
            'old outputs through them. Make the memory with unsupported="freeze" to keep their modules in eval mode after '
            "the first task, or exclude them by name.",
            stacklevel=OF_THE_CALLER,
        )
