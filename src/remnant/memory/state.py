"""The state of a memory as a dict and as a file, and the checks when it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from remnant.errors import UserError
from remnant.files import write_file

from . import codec
from .audit.preconditions import check_model
from .threshold import ThresholdSetting

if TYPE_CHECKING:
    from .gpm import GPM

Memory = TypeVar("Memory", bound="GPM")
VERSION = 2


class StateError(UserError, ValueError):
    """A saved memory is damaged, was not written by `GPM.save`, or belongs to another model."""


def collect(memory: GPM) -> dict[str, Any]:
    check_model(memory._protection)
    names = {parameter: name for name, parameter in memory._protection.named_parameters().items()}
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
        "anchors": {names[parameter]: tensor for parameter, tensor in memory._constraint.anchors.items()},
        "buffers": dict(memory._buffers.values),
        "kept_in_eval": list(memory._buffers.kept_in_eval),
        "recall": memory._recall.state() if memory._recall else None,
    }


def restore(memory: GPM, saved: Mapping[str, Any]) -> None:
    """Checks the whole state before it changes the memory."""
    check_model(memory._protection)
    parameters = memory._protection.named_parameters()
    try:
        if saved["version"] != VERSION:
            raise StateError(f"This state has version {saved['version']}; this release reads version {VERSION}.")
        tasks, steps = int(saved["tasks"]), int(saved["steps"])
        kept_in_eval = [str(name) for name in saved["kept_in_eval"]]
        _check_schema(memory, saved, complete=tasks > 0)
        if (saved["recall"] is None) != (memory._recall is None):
            raise StateError("Of the saved memory and this one, only one was made with recall=True. Make both alike.")
        records = memory._recall.read(saved["recall"], tasks) if memory._recall else None
        loaded = []
        for weight in memory._protection.weights:
            layer = saved["layers"][weight.name]
            pairs = zip(weight.subspaces, layer["subspaces"], strict=True)
            subspaces = [subspace.copy().load(directions) for subspace, directions in pairs]
            loaded.append((weight, subspaces, [int(count) for count in layer["added"]]))
    except StateError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(f"This is not the state of a memory, or it is damaged: {error!r}.") from error
    for weight, subspaces, added in loaded:
        weight.adopt(subspaces, added)
    memory._tasks, memory._constraint.steps = tasks, steps
    if memory._recall and records:
        memory._recall.tasks, memory._recall.truncations = records
    anchors = {parameters[name]: anchor for name, anchor in saved["anchors"].items()}
    memory._constraint.anchors = {parameter: anchor.to(parameter, copy=True) for parameter, anchor in anchors.items()}
    memory._constraint.stepped, memory._verifier.witnesses = set(), []
    memory._buffers.values = {name: tensor.clone() for name, tensor in saved["buffers"].items()}
    memory._buffers.kept_in_eval = kept_in_eval
    if tasks:
        memory._buffers.hold()


def _check_schema(memory: GPM, saved: Mapping[str, Any], *, complete: bool) -> None:
    """Compares all sizes in the state with those here. Once a task is remembered, nothing may be missing."""
    parameters, norms = memory._protection.named_parameters(), memory._buffers.of_norms()
    protected = set(memory._protection.parameters)
    kept = {name: parameter for name, parameter in parameters.items() if parameter in protected}
    here = _sizes(collect(memory) | {"anchors": parameters, "buffers": memory._buffers.others() | norms})
    needed = _sizes(collect(memory) | {"anchors": kept if complete else {}, "buffers": norms if complete else {}})
    in_state = _sizes(saved)
    differing = sorted(name for name in {*needed, *in_state} if here.get(name) != in_state.get(name))
    if differing:
        details = [f"{x}: {in_state.get(x, 'missing')} in the state, {here.get(x, 'missing')} here" for x in differing]
        raise StateError(
            f"The state belongs to another model or to other settings ({'; '.join(details)}). Load it into a memory of the "
            "same model that was made with the same settings; GPM.load does that."
        )


def _sizes(state: Mapping[str, Any]) -> dict[str, list[int]]:
    sizes = {f"layer {name!r}": list(layer["capacities"]) for name, layer in state["layers"].items()}
    for kind, tensors in (("parameter", state["anchors"]), ("buffer", state["buffers"])):
        sizes.update({f"{kind} {name!r}": list(tensor.shape) for name, tensor in tensors.items()})
    return sizes


def save(memory: GPM, path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder. Name the file to write, as in {path / 'memory.safetensors'}.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}. Make it first.")
    write_file(path, *codec.pack(collect(memory)))


def load(kind: type[Memory], path: Path, model: nn.Module, threshold: ThresholdSetting | None) -> Memory:
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
    try:
        memory = kind(model, **settings)
    except (TypeError, ValueError) as error:
        raise StateError(f"The memory in {path} does not fit this model: {error}") from error
    memory.load_state_dict(saved)
    return memory
