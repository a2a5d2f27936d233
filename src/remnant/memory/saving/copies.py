"""Copies and pickles of a memory. It is made again for the copied model, and attached to the copied optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .state import as_when_made

if TYPE_CHECKING:
    from ..gpm import GPM


def pack(memory: GPM) -> dict[str, Any]:
    """Returns all that a copy needs. The rules of layers are functions that pickle cannot store, so they stay behind."""
    names = {parameter: name for name, parameter in memory._protection.named_parameters().items()}
    own = (memory._model, memory._protection)
    return {
        "model": memory._model,
        "options": {**memory._settings, "threshold": memory._threshold_given},
        "state": memory.state_dict(),
        "stepped": [names[parameter] for parameter in memory._constraint.stepped],
        "buffers": {key: value for key, value in vars(memory._buffers).items() if not any(value is x for x in own)},
        # torch drops the hooks of a copied optimizer.
        "optimizers": [x for attachment in memory._attached if (x := attachment.optimizer) is not None],
    }


def unpack(memory: GPM, packed: dict[str, Any]) -> None:
    vars(memory)["_packed"] = packed
    if "_modules" in vars(packed["model"]):  # a model that holds its own memory is still empty here
        _rebuild(memory)


def unpack_late(memory: GPM, name: str) -> Any:
    """Gives a copy its attributes when they are first needed."""
    if "_packed" not in vars(memory):
        raise AttributeError(f"{type(memory).__name__!r} object has no attribute {name!r}")
    _rebuild(memory)
    return getattr(memory, name)


def _rebuild(memory: GPM) -> None:
    packed = vars(memory).pop("_packed")
    with as_when_made(packed["model"], packed["state"]["anchors"]):
        memory.__init__(packed["model"], **packed["options"])  # type: ignore[misc]
    memory.load_state_dict(packed["state"])
    parameters = memory._protection.named_parameters()
    memory._constraint.stepped.update(parameters[name] for name in packed["stepped"])
    vars(memory._buffers).update(packed["buffers"])
    for optimizer in packed["optimizers"]:
        memory.attach(optimizer)
