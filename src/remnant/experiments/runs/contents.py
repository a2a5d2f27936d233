"""A run folder's files as typed values, checked against each other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, isfinite, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from remnant.errors import RunError, UserError
from remnant.evaluation import AccuracyMatrix, average_accuracy

if TYPE_CHECKING:
    from .folder import RunFolder

ACCURACY, RANKS, DRIFT, RESULT = "accuracy.csv", "ranks.json", "drift.json", "result.json"

# The schema of settings.json, and of the settings in it. Settings of older releases may lack a section.
HEADER: dict[str, type] = {"benchmark": str, "method": str, "digest": str, "seed": int, "settings": dict}
SECTIONS: dict[str, type] = {"protocol": str, "stream": dict, "network": dict, "training": dict, "options": dict}
TYPE_NAMES = {str: "text", int: "a whole number", dict: "a table"}


class DriftHistogram(NamedTuple):
    """How often a value fell between `edges[i]` and `edges[i + 1]`."""

    edges: tuple[float, ...]
    counts: tuple[float, ...]


@dataclass(frozen=True)
class RunResult:
    """The numbers of `result.json`, as fractions. None: not defined, as BWT is not for joint training."""

    acc: float
    bwt: float | None = None
    learning_accuracy: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)  # of train, evaluate and consolidate
    capacity: float | None = None  # parameters at the end, relative to the network at the start
    memory_bytes: float | None = None


@dataclass(frozen=True)
class RunContents:
    """Everything a run has measured."""

    digest: str  # computed from the settings, so that an edited `settings.json` does not pass for the original
    environment: Mapping[str, Any]
    matrix: AccuracyMatrix | None
    result: RunResult | None  # None until the run is finished
    ranks: Mapping[str, Sequence[int]]
    drift: Mapping[str, DriftHistogram]  # per layer, for inputs of the first task: the paper's interference activation
    metrics: Sequence[Mapping[str, Any]]


def check_header(file: Path, header: Mapping[str, Any]) -> None:
    """Raises RunError unless `header`, the content of settings.json, has the parts and types that it should have."""
    if missing := HEADER.keys() - header.keys():
        raise RunError(f"{file} is not the settings of a run: {', '.join(sorted(missing))} missing.")
    settings = header["settings"]
    for values, types in ((header, HEADER), (settings, SECTIONS)):
        for name in types.keys() & values.keys():
            if type(values[name]) is not types[name]:
                raise RunError(f"{file}: {name} is {values[name]!r}, which is not {TYPE_NAMES[types[name]]}.")
    for name in ("benchmark", "method"):
        if settings.get(name, header[name]) != header[name]:
            raise RunError(f"{file}: {name} is {header[name]!r}, but {settings[name]!r} among the settings.")


def read_contents(folder: RunFolder) -> RunContents:
    """All measurements of a run, typed and checked against each other; RunError if a file is damaged."""
    matrix, result, ranks = folder.matrix(), folder.result(), folder.ranks() or {}
    try:
        for layer, added in ranks.items():
            if not isinstance(added, list) or not all(isinstance(rank, int) for rank in added):
                raise ValueError(f"{RANKS}: {layer} should have one whole number per task, not {added!r}.")
        return RunContents(
            _digest(folder.settings),
            folder.environment() or {},
            matrix,
            None if result is None else _result(result, matrix),
            ranks,
            {layer: _histogram(layer, content) for layer, content in (folder.drift() or {}).items()},
            folder.metrics(),
        )
    except ValueError as error:
        raise RunError(f"{folder.path}/{error}") from error


def _digest(settings: Mapping[str, Any]) -> str:
    from ..settings import Settings

    try:
        return Settings.from_dict(settings).digest
    except (UserError, ValueError, TypeError, AttributeError):  # settings of another release
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def _result(content: Mapping[str, Any], matrix: AccuracyMatrix | None) -> RunResult:
    if matrix is None or matrix.learned < matrix.tasks:
        raise ValueError(f"{RESULT} exists, but {ACCURACY} is missing or incomplete.")
    acc = _number(content, "acc")
    if acc is None or not 0 <= acc <= 1:
        raise ValueError(f"{RESULT}: acc is {content.get('acc')!r}, not a fraction between 0 and 1.")
    if abs(acc - average_accuracy(matrix)) > 1e-6:
        raise ValueError(f"{RESULT} says ACC {acc:.4f}, but {ACCURACY} gives {average_accuracy(matrix):.4f}.")
    seconds = content.get("seconds")
    if not isinstance(seconds, dict):
        raise ValueError(f"{RESULT}: seconds is {seconds!r}, not a table with train, evaluate and consolidate.")
    others = {name: _number(content, name) for name in ("bwt", "learning_accuracy", "capacity", "memory_bytes")}
    return RunResult(acc, seconds={str(part): _number(seconds, part) or 0.0 for part in seconds}, **others)


def _number(content: Mapping[str, Any], key: str) -> float | None:
    value = content.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value in (inf, -inf):
        raise ValueError(f"{RESULT}: {key} is {value!r}, not a number.")
    return None if isnan(value) else float(value)


def _histogram(layer: str, content: Any) -> DriftHistogram:
    try:
        edges, counts = (tuple(float(x) for x in content[part]) for part in ("edges", "counts"))
    except (TypeError, KeyError, ValueError):
        edges, counts = (), ()
    rising = all(isfinite(low) and isfinite(high) and low < high for low, high in pairwise(edges))
    if not counts or len(edges) != len(counts) + 1 or not rising or not all(0 <= n < inf for n in counts):
        raise ValueError(f"{DRIFT}: {layer} should have lists of numbers: n counts and n + 1 rising edges.")
    return DriftHistogram(edges, counts)
