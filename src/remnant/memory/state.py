"""The state of a memory as a dict and as a file, and the checks when it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from remnant.files import write_file

from . import codec
from .discovery import clean
from .errors import StateError
from .subspace import Subspace
from .threshold import ThresholdSetting

if TYPE_CHECKING:
    from .gpm import GPM

VERSION = 2


def collect(memory: GPM) -> dict[str, Any]:
    names = {id(p): clean(name) for name, p in memory._model.named_parameters()}
    return {
        "version": VERSION,
        "tasks": memory._tasks,
        "steps": memory._constraint.steps,
        "settings": dict(memory._settings),
        "layers": {
            weight.name: {
                "capacities": [subspace.capacity for subspace in weight.subspaces],
                "added": list(weight.added),
                "subspaces": [subspace.state() for subspace in weight.subspaces],
            }
            for weight in memory._protection.weights
        },
        "anchors": {names[id(parameter)]: tensor for parameter, tensor in memory._constraint.anchors.items()},
        "buffers": dict(memory._buffers.values),
        "kept_in_eval": list(memory._buffers.kept_in_eval),
    }


def restore(memory: GPM, saved: Mapping[str, Any]) -> None:
    """Checks the whole state before it changes the memory."""
    weights, buffers, constraint = memory._protection.weights, memory._buffers, memory._constraint
    parameters = {clean(name): parameter for name, parameter in memory._model.named_parameters()}
    try:
        if saved["version"] != VERSION:
            raise StateError(f"This state has version {saved['version']}; this release reads version {VERSION}.")
        tasks, steps = int(saved["tasks"]), int(saved["steps"])
        layers, anchors, values = saved["layers"], dict(saved["anchors"]), dict(saved["buffers"])
        kept_in_eval = [str(name) for name in saved["kept_in_eval"]]
        _check_layers(memory, layers)
        subspaces = {weight.name: _loaded(weight.subspaces, layers[weight.name]["subspaces"]) for weight in weights}
        added = {weight.name: [int(count) for count in layers[weight.name]["added"]] for weight in weights}
        _check_anchors(memory, parameters, anchors, complete=bool(tasks))
        if tasks:
            _check_buffers(memory, values)
    except StateError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(f"This is not the state of a memory, or it is damaged: {error!r}.") from error
    for weight in weights:
        weight.adopt(subspaces[weight.name], added[weight.name])
    memory._tasks, constraint.steps = tasks, steps
    constraint.anchors = {parameters[name]: anchor.to(parameters[name], copy=True) for name, anchor in anchors.items()}
    constraint.stepped.clear()
    memory._known_full = {weight.name for weight in weights if weight.rank == weight.capacity}
    buffers.values = {name: tensor.clone() for name, tensor in values.items()}
    buffers.kept_in_eval = kept_in_eval
    if tasks:
        buffers.hold()


def save(memory: GPM, path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(
            f"{path} is a folder. Name the file to write, for example {path / 'memory.safetensors'}."
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}. Make it first.")
    write_file(path, *codec.pack(collect(memory)))


def load(path: Path, threshold: ThresholdSetting | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a saved state, and the arguments with which its memory was made."""
    try:
        saved = codec.read(path)
    except (codec.DamagedError, codec.VersionError) as error:
        raise StateError(f"{path} does not hold a memory that GPM.save() wrote: {error}. Load another copy.") from error
    settings = saved.get("settings")
    if not isinstance(settings, dict) or "threshold" not in settings:
        raise StateError(f"{path} holds another state than a memory: it was not written by GPM.save().")
    if threshold is not None:
        settings = {**settings, "threshold": threshold}
    if settings["threshold"] is None:
        raise StateError(f"The threshold of {path} was a function. Pass it again: GPM.load(path, model, threshold=…).")
    return saved, settings


def _check_layers(memory: GPM, layers: Mapping[str, Any]) -> None:
    ours = {weight.name: [subspace.capacity for subspace in weight.subspaces] for weight in memory._protection.weights}
    theirs = {name: list(layer["capacities"]) for name, layer in layers.items()}
    differing = sorted(name for name in ours | theirs if ours.get(name) != theirs.get(name))
    if differing:
        details = [
            f"{name} has {theirs.get(name, 'no')} inputs there and {ours.get(name, 'no')} here" for name in differing
        ]
        raise StateError(f"The state belongs to another model: {'; '.join(details)}.")


def _check_anchors(
    memory: GPM, parameters: Mapping[str, Tensor], anchors: Mapping[str, Tensor], *, complete: bool
) -> None:
    """After a task, each parameter that this memory protects or freezes needs the value that it must keep."""
    ours = {id(parameter) for parameter in memory._protection.parameters}
    without = sorted(name for name, p in parameters.items() if id(p) in ours and name not in anchors)
    if complete and without:
        raise StateError(
            f"The state has no value for {', '.join(without)}, which this memory protects. Make the memory with the "
            "settings of the saved one (GPM.load does)."
        )
    for name, anchor in anchors.items():
        if name not in parameters or parameters[name].shape != anchor.shape:
            raise StateError(
                f"The state belongs to another model: this one has no parameter {name!r} of {tuple(anchor.shape)}."
            )


def _check_buffers(memory: GPM, values: Mapping[str, Tensor]) -> None:
    """All buffers of the norms must be there, and those of other modules that a forward pass has read."""
    norms = memory._buffers.of_norms()
    ours = {name: tensor.shape for name, tensor in {**memory._buffers.others(), **norms}.items()}
    theirs = {name: tensor.shape for name, tensor in values.items()}
    other = sorted(name for name in norms.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    if other:
        raise StateError(f"The state belongs to another model or other settings: its buffer {other[0]!r} differs.")


def _loaded(present: list[Subspace], states: list[dict[str, Tensor]]) -> list[Subspace]:
    loaded = [subspace.copy() for subspace in present]
    for subspace, state in zip(loaded, states, strict=True):
        subspace.load(state)
    return loaded
