"""What a task needs to be recalled, as an object and in a saved state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..report import StateError, Truncation
from ..saving import valid
from ..subspaces.subspace import Subspace
from ..weights.discovery import Protection, clean

Ranks = dict[str, list[int]]  # weight → the rank of each group's subspace


@dataclass(frozen=True)
class TaskRecord:
    """What one task needs to be recalled: its ranks, the tensors that it changed, and its inputs' own directions."""

    ranks: Ranks
    own: dict[str, Tensor]
    first_layer: str
    inputs: list[Subspace]


def collect(tasks: Sequence[TaskRecord], truncations: Sequence[Truncation]) -> dict[str, Any]:
    """The records of all tasks as a state."""
    records = [{**vars(x), "inputs": [subspace.state() for subspace in x.inputs]} for x in tasks]
    return {"tasks": records, "truncations": [vars(truncation) for truncation in truncations]}


def read(
    state: Mapping[str, Any], tasks: int, protection: Protection, subspaces: Mapping[str, list[Subspace]]
) -> tuple[list[TaskRecord], list[Truncation]]:
    """Reads and checks the records of that many tasks. `subspaces` are the loaded ones of each weight."""
    if len(state["tasks"]) != tasks:
        raise ValueError(f"{tasks} tasks with {len(state['tasks'])} records for recall")
    model, records = protection.model, []
    known = {clean(name): tensor for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    weights = {weight.name: weight for weight in protection.weights}
    before = {name: [0] * len(own) for name, own in subspaces.items()}
    for task in state["tasks"]:
        before = _ranks(task["ranks"], subspaces, before)
        if lost := task["own"].keys() - known.keys():
            raise StateError(
                f"The saved tasks have {min(lost)!r}, which this model lacks. Load them into the same model."
            )
        own = {name: valid.tensor(name, value, known[name], infinite=True) for name, value in task["own"].items()}
        first = weights[task["first_layer"]]
        empty = [type(x)(x.capacity, device=first.view.weight.device) for x in first.subspaces]
        inputs = [subspace.load(saved) for subspace, saved in zip(empty, task["inputs"], strict=True)]
        records.append(TaskRecord(before, own, first.name, inputs))
    truncations = [Truncation(**truncation) for truncation in state["truncations"]]
    for x in truncations:
        valid.whole("a task", x.task, tasks - 1)
        valid.number("a loss", x.loss)
        valid.number("a loss", x.recalled_loss)
    return records, truncations


def _ranks(saved: Mapping[str, Any], subspaces: Mapping[str, list[Subspace]], before: Ranks) -> Ranks:
    """The ranks after a task. They never fall, and every subspace has that many directions."""
    if saved.keys() != subspaces.keys():
        raise ValueError(f"the ranks of a task are those of {sorted(saved)}")
    for name, own in subspaces.items():
        for subspace, rank, least in zip(own, saved[name], before[name], strict=True):
            if valid.whole("a rank", rank) < least or subspace.prefix(rank).rank != rank:
                raise ValueError(f"{name!r} has the rank {rank} after a task")
    return {name: list(ranks) for name, ranks in saved.items()}
