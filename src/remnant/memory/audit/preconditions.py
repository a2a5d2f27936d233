"""Refuses and reports mistakes that would let a model forget unnoticed."""

import warnings
from collections.abc import Iterable, Mapping, Sequence

from torch import nn
from torch.optim import Optimizer

from ..discovery import Protection, clean
from ..errors import ConsolidationError
from ..patterns import Selection
from ..protected import ProtectedWeight
from .verification import LayerCheck, buffers_changed

SUSPICIOUS = 0.01  # a larger leak means that steps bypassed the memory
CALLER = 3  # the stack level of the code that called the memory


def check_model(model: nn.Module, protection: Protection) -> None:
    """Refuses a model whose protected parameters were replaced by other objects (a new head, a swapped layer)."""
    present = {id(parameter) for parameter in model.parameters()}
    protected = [(weight.name, parameter) for weight in protection.weights for parameter in weight.parameters]
    for name, parameter in [*protected, *protection.frozen.items()]:
        if id(parameter) not in present:
            raise RuntimeError(
                f"The parameters of {name!r} were replaced after the memory was made. Make a new memory for the model as "
                "it is now (GPM.load loads saved bases into it)."
            )


def check_optimizer(optimizer: Optimizer, model: nn.Module, protection: Protection, selection: Selection) -> None:
    """Refuses an optimizer that trains no protected weight, or a selected parameter that is new or was frozen before."""
    trained = {p for group in optimizer.param_groups for p in group["params"]}
    protected = set(protection.parameters)
    if not trained & protected:
        raise ValueError(
            "This optimizer trains none of the protected weights. Build it from the parameters of the memory's model "
            "(after any wrapper that replaces them), then attach it."
        )
    known = protected | set(protection.free.values())
    for name, parameter in model.named_parameters():
        if parameter in trained and parameter.requires_grad and parameter not in known and clean(name) in selection:
            raise ValueError(
                f"{name!r} did not exist or did not train when the memory was made, so it is not protected. Exclude it by "
                "a pattern (new heads may be added under it at any time), or make a new memory."
            )


def refuse_uncovered(uncovered: Mapping[ProtectedWeight, float]) -> None:
    if uncovered:
        named = ", ".join(f"{w.name!r} ({type(w.sites[0].module).__name__}, {by:.1%})" for w, by in uncovered.items())
        raise ConsolidationError(
            f"These weights are used in ways that their rule does not cover: {named}. A change of the weight that none of "
            "its layer's recorded inputs can see moved the model's outputs, so later tasks would move old outputs. Call the "
            "layer itself instead of a function with its weight, correct its rule (register_layer), exclude the layer, or "
            'make the memory with unsupported="freeze" to hold the weight fixed after the first task or "free" to accept '
            "that. Nothing was remembered."
        )


def warn_inconclusive(reason: str) -> None:
    if reason:
        warnings.warn(
            f"Whether the memory covers every use of the weights could not be tested on this model: {reason}.",
            stacklevel=CALLER,
        )


def warn_full(layers: Sequence[str]) -> None:
    if layers:
        warnings.warn(
            f"Full, and from now on fixed: {', '.join(layers)}. Every input direction of the layer is remembered. A lower "
            "threshold or a wider layer would leave room for more tasks.",
            stacklevel=CALLER,
        )


def warn_leaks(checks: Iterable[LayerCheck]) -> None:
    leaking = [x for x in checks if x.leak > max(SUSPICIOUS, x.rounding)]
    messages = []
    if weights := [f"{x.name} ({x.leak:.0%})" for x in leaking if not x.buffer]:
        messages.append(
            f"In this task, these layers changed inside the subspaces of earlier tasks: {', '.join(weights)}. They may have "
            "forgotten. Attach every optimizer that trains them, or call project() and restore() around your own steps."
        )
    if buffers := [x.name for x in leaking if x.buffer]:
        messages.append(buffers_changed(buffers))
    if messages:
        warnings.warn(" ".join(messages), stacklevel=CALLER)


def warn_moving_buffers(names: Sequence[str]) -> None:
    if names:
        warnings.warn(
            f"The forward pass reads buffers that training changes and nothing protects: {', '.join(map(repr, names))}. "
            'Later tasks will change old outputs through them. Make the memory with unsupported="freeze" to keep their '
            "modules in eval mode after the first task, or exclude them by name.",
            stacklevel=CALLER,
        )
