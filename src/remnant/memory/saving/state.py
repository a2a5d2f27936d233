"""The state of a memory as a dict and as a file, and the checks when it is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, is_tensor, nn

from remnant.files import remove_stale, write_file

from ..audit.preconditions import check_model
from ..recall import records
from ..report import StateError
from ..subspaces.subspace import Subspace
from ..subspaces.threshold import ThresholdSetting
from ..weights.discovery import clean, unwrap
from ..weights.distributed import is_sharded, sharded_like, summed, whole, world
from ..weights.protected import ProtectedWeight
from . import codec, valid

if TYPE_CHECKING:
    from ..gpm import GPM
    from ..recall.recall import Recall

Memory = TypeVar("Memory", bound="GPM")
VERSION = 2
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)  # what a wrong type leads to


def collect(memory: GPM) -> dict[str, Any]:
    """All of the state. Sharded anchors are gathered, on the CPU, so all processes must call it."""
    if memory._recall:
        _check_not_recalling(memory._recall)
    unsettled = memory._constraint.unsettled
    if unsettled:
        memory._constraint.settle()
    check_model(memory._protection)
    names = {parameter: name for name, parameter in memory._protection.named_parameters().items()}
    anchors = memory._constraint.anchors
    return {
        "version": VERSION,
        "tasks": memory._tasks,
        "steps": memory._constraint.steps,
        "unsettled": unsettled,  # the model may have been saved before its weights were restored above
        "settings": dict(memory._settings),
        "layers": {
            weight.name: {
                "capacities": [subspace.capacity for subspace in weight.subspaces],
                "added": list(weight.added),
                "subspaces": [subspace.state() for subspace in weight.subspaces],
            }
            for weight in memory._protection.weights
        },
        "anchors": {names[p]: whole(tensor).cpu() if is_sharded(tensor) else tensor for p, tensor in anchors.items()},
        "buffers": dict(memory._buffers.values),
        # The checksums of shards depend on the number of processes.
        "fixed": {} if memory._protection.sharded else {n: list(x) for n, x in memory._buffers.checksums.items()},
        "kept_in_eval": list(memory._buffers.kept_in_eval),
        "recall": records.collect(memory._recall.tasks, memory._recall.truncations) if memory._recall else None,
    }


def restore(memory: GPM, saved: Mapping[str, Any]) -> None:
    """Checks the whole state before it changes the memory."""
    if memory._recall:
        _check_not_recalling(memory._recall)
    check_model(memory._protection)
    parameters = memory._protection.named_parameters()
    try:
        if valid.whole("the version", saved["version"]) != VERSION:
            raise StateError(
                f"Another release of Remnant wrote this state: it has version {saved['version']}, and this release reads "
                f"version {VERSION}. Load it with the other release."
            )
        tasks, steps = valid.whole("tasks", saved["tasks"]), valid.whole("steps", saved["steps"])
        unsettled = saved.get("unsettled", False)  # older files lack it
        if type(unsettled) is not bool:
            raise ValueError(f"unsettled is {unsettled!r}")
        fixed = {} if memory._protection.sharded else valid.checksums(saved.get("fixed", {}))  # older files lack it
        kept_in_eval = list(saved["kept_in_eval"])
        if unknown := set(kept_in_eval) - {clean(name) for name, _ in memory._model.named_modules()}:
            raise ValueError(f"there is no module {unknown.pop()!r}")
        _check_schema(memory, saved, complete=tasks > 0)
        if (own := saved["settings"].get("own_rank", 0)) != memory._settings["own_rank"]:
            raise StateError(
                f"The saved memory was made with own_rank={own!r}, and this one with {memory._settings['own_rank']}."
            )
        if (saved["recall"] is None) != (memory._recall is None):
            raise StateError(
                "Either the saved memory or this one was made with recall=True, but not both. Make both alike."
            )
        layers = {w: _read_layer(w, saved["layers"][w.name], tasks) for w in memory._protection.weights}
        loaded = {weight.name: subspaces for weight, (subspaces, _) in layers.items()}
        recalled = records.read(saved["recall"], tasks, memory._protection, loaded) if memory._recall else None
        anchors = {name: valid.tensor(name, anchor, parameters[name]) for name, anchor in saved["anchors"].items()}
        here = memory._buffers.others() | memory._buffers.of_norms()
        buffers = {name: valid.tensor(name, x, here[name], infinite=True) for name, x in saved["buffers"].items()}
    except StateError:
        raise
    except MALFORMED as error:
        raise StateError(f"This is not the state of a memory, or it is damaged: {error!r}.") from error
    for weight, (subspaces, added) in layers.items():
        weight.adopt(subspaces, added)
    memory._tasks, memory._constraint.steps = tasks, steps
    if memory._recall and recalled:
        memory._recall.tasks, memory._recall.truncations = recalled
    placed = {parameters[name]: anchor for name, anchor in anchors.items()}
    memory._constraint.anchors = {
        p: sharded_like(anchor.to(device=p.device, dtype=p.dtype, copy=True), p) for p, anchor in placed.items()
    }
    memory._constraint.stepped, memory._verifier.witnesses = set(), []
    memory._buffers.values = {name: tensor.clone() for name, tensor in buffers.items()}
    memory._buffers.kept_in_eval = kept_in_eval
    memory._buffers.expect(fixed)
    if tasks:
        memory._buffers.hold()
    if unsettled:
        memory._constraint.restore()


@contextmanager
def as_when_made(model: nn.Module, protected: Iterable[str]) -> Iterator[None]:
    """Lets protected parameters that were frozen since require gradients in the block, so that none is left out."""
    parameters = {clean(name): parameter for name, parameter in unwrap(model).named_parameters()}
    frozen = [p for name in protected if (p := parameters.get(name)) is not None and not p.requires_grad]
    try:
        for parameter in frozen:
            parameter.requires_grad_(parameter.is_floating_point())
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def _check_not_recalling(recall: Recall) -> None:
    if recall.is_training:
        raise RuntimeError("Leave the block of memory.recalling() before you save, copy or load the memory.")


def _read_layer(weight: ProtectedWeight, layer: Mapping[str, Any], tasks: int) -> tuple[list[Subspace], list[int]]:
    """The subspaces of a weight, and the number of directions that each task added."""
    pairs = zip(weight.subspaces, layer["subspaces"], strict=True)
    subspaces = [subspace.copy().load(directions) for subspace, directions in pairs]
    added = [valid.whole("a number of directions", count) for count in layer["added"]]
    # A user may have added directions by hand, which count for no task, or removed indices of an embedding.
    most = weight.capacity if weight.view.one_hot else sum(subspace.rank for subspace in subspaces)
    if len(added) != tasks or sum(added) > most:
        raise ValueError(f"{tasks} tasks added {added} to the {most} directions of {weight.name!r}")
    return subspaces, added


def _check_schema(memory: GPM, saved: Mapping[str, Any], *, complete: bool) -> None:
    """Compares all sizes in the state with those here. Once a task is remembered, nothing may be missing."""
    parameters, norms = memory._protection.named_parameters(), memory._buffers.of_norms()
    protected = set(memory._protection.parameters)
    kept = {name: parameter for name, parameter in parameters.items() if parameter in protected}
    layers = {w.name: [subspace.capacity for subspace in w.subspaces] for w in memory._protection.weights}
    here = _sizes(layers, parameters, memory._buffers.others() | norms)
    needed = _sizes(layers, kept if complete else {}, norms if complete else {})
    capacities = {name: layer["capacities"] for name, layer in saved["layers"].items()}
    in_state = _sizes(capacities, saved["anchors"], saved["buffers"])
    differing = sorted(name for name in {*needed, *in_state} if here.get(name) != in_state.get(name))
    if differing:
        details = [f"{x}: {in_state.get(x, 'missing')} in the state, {here.get(x, 'missing')} here" for x in differing]
        raise StateError(
            f"The state belongs to another model or to other settings ({'; '.join(details)}). Load it into a memory of the "
            "same model that was made with the same settings; GPM.load does that."
        )


def _sizes(
    layers: Mapping[str, list[int]], anchors: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
) -> dict[str, list[int]]:
    sizes = {f"layer {name!r}": [valid.whole("a capacity", n) for n in found] for name, found in layers.items()}
    for kind, tensors in (("parameter", anchors), ("buffer", buffers)):
        sizes.update({f"{kind} {name!r}": list(tensor.shape) for name, tensor in tensors.items()})
    return sizes


def save(memory: GPM, path: Path) -> None:
    with memory._lock:  # another thread may consolidate
        pieces = codec.pack(collect(memory))
    sharded, failure = memory._protection.sharded, None
    if not sharded or world()[0] == 0:  # the other processes may not have the folder
        try:
            _write(path, pieces)
        except BaseException as error:
            failure = error
    # The other processes wait for the file, and must not continue without it.
    failed = sharded and bool(summed(torch.tensor(int(failure is not None), device="cpu")))
    if failure is not None:
        raise failure
    if failed:
        raise OSError(f"Rank 0 could not write {path}. Its own error says why.")


def _write(path: Path, pieces: list[bytes | memoryview]) -> None:
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder. Name the file to write, as in {path / 'memory.safetensors'}.")
    path = path.resolve()  # the file behind a link, not the link
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is a device or a pipe. Name an ordinary file.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}. Make it first.")
    remove_stale(path.parent, path.name)
    write_file(path, *pieces)


def load(kind: type[Memory], path: Path, model: nn.Module, threshold: ThresholdSetting | None) -> Memory:
    try:
        saved = codec.read(path)
    except codec.VersionError as error:
        raise StateError(
            f"Another release of Remnant wrote {path}: {error}. Load it with the other release."
        ) from error
    except codec.DamagedError as error:
        raise StateError(f"{path} does not hold a memory that GPM.save() wrote: {error}. Load another copy.") from error
    except OSError as error:
        raise type(error)(f"{path} cannot be read ({error.strerror}). Pass the file that GPM.save() wrote.") from error
    settings = saved.get("settings")
    if not isinstance(settings, dict) or "threshold" not in settings or any(map(is_tensor, settings.values())):
        raise StateError(f"{path} does not hold a memory: it was not written by GPM.save().")
    if threshold is not None:
        settings = {**settings, "threshold": threshold}
    if settings["threshold"] is None:
        raise StateError(f"The threshold of {path} was a function. Pass it again: GPM.load(path, model, threshold=…).")
    try:
        with as_when_made(model, saved["anchors"]):
            memory = kind(model, **settings)
    except MALFORMED as error:
        raise StateError(f"The memory in {path} does not fit this model: {error}") from error
    try:
        memory.load_state_dict(saved)
    except BaseException:
        memory._protection.remove_new_parts()
        raise
    return memory
