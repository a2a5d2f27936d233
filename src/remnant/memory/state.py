"""A memory's state: what goes into a dict or a file, and the checks on the way back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from . import storage
from .discovery import clean
from .errors import StateError
from .subspace import Subspace

if TYPE_CHECKING:
    from .gpm import GPM


def collect(memory: GPM) -> dict[str, Any]:
    names = {id(p): clean(name) for name, p in memory._model.named_parameters()}
    return {
        "version": storage.VERSION,
        "tasks": memory._tasks,
        "steps": memory._steps,
        "settings": dict(memory._settings),
        "layers": {
            weight.name: {
                "capacities": [subspace.capacity for subspace in weight.subspaces],
                "added": list(weight.added),
                "subspaces": [subspace.state() for subspace in weight.subspaces],
            }
            for weight in memory._protection.weights
        },
        "anchors": {names[id(parameter)]: tensor for parameter, tensor in memory._anchors.items()},
        "statistics": dict(memory._buffers.values),
        "held": list(memory._buffers.held),
    }


def restore(memory: GPM, saved: Mapping[str, Any]) -> None:
    """Checks everything, then takes it over."""
    try:
        if saved["version"] != storage.VERSION:
            raise StateError(
                f"This state has version {saved['version']}; this release reads version {storage.VERSION}."
            )
        layers, anchors, statistics = saved["layers"], saved["anchors"], saved["statistics"]
        tasks, steps = int(saved["tasks"]), int(saved["steps"])
        held = [str(name) for name in saved.get("held", [])]  # files from before have none
        _same_layers(memory, layers)
        subspaces = {
            weight.name: _subspaces(weight.subspaces, layers[weight.name]) for weight in memory._protection.weights
        }
        added = {name: [int(count) for count in layer["added"]] for name, layer in layers.items()}
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(f"This is not the state of a memory, or it is damaged: {error!r}.") from error
    parameters = {clean(name): parameter for name, parameter in memory._model.named_parameters()}
    if tasks:
        _same_anchors(memory, parameters, anchors)
        _same_statistics(memory, statistics)
    for name, anchor in anchors.items():
        if name not in parameters or parameters[name].shape != anchor.shape:
            raise StateError(
                f"The state belongs to another model: this one has no parameter {name!r} of {tuple(anchor.shape)}."
            )
    for weight in memory._protection.weights:
        weight.adopt(subspaces[weight.name], added[weight.name])
    memory._tasks, memory._steps = tasks, steps
    memory._anchors = {parameters[name]: anchor.to(parameters[name], copy=True) for name, anchor in anchors.items()}
    memory._buffers.values = {name: tensor.clone() for name, tensor in statistics.items()}
    memory._buffers.held = held
    memory._stepped.clear()
    memory._said_full = {weight.name for weight in memory._protection.weights if weight.rank == weight.capacity}
    if tasks:
        memory._buffers.hold()


def save(memory: GPM, path: Path) -> None:
    state = collect(memory)
    tensors: dict[str, Tensor] = {}
    for name, layer in state["layers"].items():
        for group, subspace in enumerate(layer.pop("subspaces")):
            tensors.update({f"layers/{name}/{group}/{form}": tensor for form, tensor in subspace.items()})
    for kind in ("anchors", "statistics"):
        tensors.update({f"{kind}/{name}": tensor for name, tensor in state.pop(kind).items()})
    storage.write(path, state, tensors)


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The file's header, and the state_dict it holds."""
    header, tensors = storage.read(path)
    state: dict[str, Any] = {**header, "anchors": {}, "statistics": {}}
    try:
        for layer in state["layers"].values():
            layer["subspaces"] = [{} for _ in layer["capacities"]]
        for key, tensor in tensors.items():
            kind, name = key.split("/", 1)
            if kind == "layers":
                name, group, form = name.rsplit("/", 2)
                state["layers"][name]["subspaces"][int(group)][form] = tensor
            else:
                state[kind][name] = tensor
    except (KeyError, ValueError, IndexError) as error:
        raise StateError(f"{path} is damaged: its header and its tensors do not agree ({error!r}).") from error
    return header, state


def _same_layers(memory: GPM, layers: Mapping[str, Any]) -> None:
    ours = {weight.name: [subspace.capacity for subspace in weight.subspaces] for weight in memory._protection.weights}
    theirs = {name: list(layer["capacities"]) for name, layer in layers.items()}
    if ours == theirs:
        return
    missing, extra = sorted(theirs.keys() - ours.keys()), sorted(ours.keys() - theirs.keys())
    other = sorted(name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name])
    details = [
        *(["it has layers this model does not: " + ", ".join(missing)] if missing else []),
        *(["this model has layers it does not: " + ", ".join(extra)] if extra else []),
        *(f"{name} has {theirs[name]} inputs there and {ours[name]} here" for name in other),
    ]
    raise StateError(f"The state belongs to another model: {'; '.join(details)}.")


def _same_anchors(memory: GPM, parameters: Mapping[str, Tensor], anchors: Mapping[str, Tensor]) -> None:
    """Everything this memory holds must have a start to hold it to: it may freeze what the saved one left free."""
    held = {id(p) for w in memory._protection.weights for p in w.parameters} | {
        id(p) for p in memory._protection.frozen.values()
    }
    without = sorted(name for name, p in parameters.items() if id(p) in held and name not in anchors)
    if without:
        raise StateError(
            f"The state says nothing of {', '.join(without)}, which this memory holds. Make it with the settings of the "
            "saved one (GPM.load does)."
        )


def _same_statistics(memory: GPM, statistics: Mapping[str, Tensor]) -> None:
    """Those of the norms must be there. Of other modules' buffers it has those that a forward pass was seen to read."""
    norms, others = memory._buffers.of_norms(), memory._buffers.others()
    ours = {name: tuple(tensor.shape) for name, tensor in {**others, **norms}.items()}
    theirs = {name: tuple(tensor.shape) for name, tensor in statistics.items()}
    other = sorted(name for name in norms.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    if other:
        raise StateError(f"The state belongs to another model or other settings: {other[0]!r} is not the same there.")


def _subspaces(present: list[Subspace], layer: Mapping[str, Any]) -> list[Subspace]:
    loaded = []
    for subspace, state in zip(present, layer["subspaces"], strict=True):
        new = subspace.copy()
        new.load(state)
        loaded.append(new)
    return loaded
