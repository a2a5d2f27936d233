"""What each file of a run folder holds, and the content as typed values that are checked against each other."""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from remnant.errors import RunError, UserError
from remnant.evaluation import AccuracyMatrix, average_accuracy
from remnant.files import RUN_AGAIN, damaged, parse_json, read
from remnant.options import PLAIN, Kind, number, or_none, whole

from ..settings import Settings

if TYPE_CHECKING:
    from .folder import RunFolder


class File(StrEnum):
    """The files of a run folder, besides its checkpoints."""

    SETTINGS = "settings.json"
    ENVIRONMENT = "environment.json"  # versions, device, commit and the user's own files
    EXECUTION = "execution.json"  # how the run is carried out: no setting, but resuming needs it
    METRICS = "metrics.jsonl"  # a line for each epoch
    ACCURACY = "accuracy.csv"
    RANKS = "ranks.json"  # {layer: [directions added by each task]}
    DRIFT = "drift.json"  # {layer: {"edges": [n + 1 numbers], "counts": [n numbers]}}
    RESULT = "result.json"  # written last: it marks the run as finished
    LOCK = ".lock"


TEXT, FLAG, NUMBER = PLAIN[str], PLAIN[bool], PLAIN[float]
COUNT, AMOUNT, FRACTION, CHANGE = whole(0, 10**15), number(0, 1e18), number(0, 1), number(-1, 1)
TENSOR = Kind("a tensor", lambda value: isinstance(value, Tensor))
TABLE = Kind("a table", lambda value: isinstance(value, dict))
LIST = Kind("a list", lambda value: isinstance(value, list))
ALIKE: dict[type, Any] = {int: int | float, float: int | float, list: list | tuple, tuple: list | tuple}

# The shape of a table lists its values by name: a name with a ? may be missing, and * stands for all names that are not
# listed. A list has the shape of its entries. Settings of older releases may lack a section.
Shape = Kind | list[Any] | dict[str, Any]
CODE_SHAPE = {"remnant?": or_none(TEXT), "commit?": or_none(TEXT), "modified?": or_none(FLAG)}
SETTINGS_SHAPE = {"benchmark?": TEXT, "method?": TEXT, "protocol?": TEXT, "stream?": {}, "network?": {"name?": TEXT}}
SETTINGS_SHAPE |= {"training?": {"*": or_none(NUMBER)}, "options?": {"lr?": NUMBER}, "optimizer?": {"name?": TEXT}}
STATE_SHAPE = {"epoch": COUNT, "lr": or_none(NUMBER), "best_loss": number(-inf, inf), "patience": COUNT, "over": FLAG}
SHAPES: dict[str, Shape] = {
    File.SETTINGS: {
        "benchmark": TEXT,
        "method": TEXT,
        "digest": TEXT,
        "seed": whole(0, 2**32 - 1),
        "settings": SETTINGS_SHAPE,
    },
    File.ENVIRONMENT: {**CODE_SHAPE, "before?": [CODE_SHAPE]},
    File.EXECUTION: {"deterministic?": FLAG, "tf32?": FLAG, "steps?": TEXT, "checkpoint_every?": COUNT, "drift?": FLAG},
    File.METRICS: {"task": COUNT, "epoch": COUNT, "*": or_none(NUMBER)},  # each line
    File.RANKS: {"*": [COUNT]},
    File.DRIFT: {"*": {"edges": [NUMBER], "counts": [AMOUNT]}},
    File.RESULT: {
        "acc": FRACTION,
        "seconds": {"*": AMOUNT},
        **dict.fromkeys(("learning_accuracy?", "validation_acc?"), or_none(FRACTION)),
        **dict.fromkeys(("bwt?", "validation_bwt?"), or_none(CHANGE)),
        **dict.fromkeys(("capacity?", "memory_bytes?"), or_none(AMOUNT)),
    },
}
CHECKPOINT_SHAPE: Shape = {
    **{"run": TEXT, "task": COUNT, "lines": COUNT, "method": {}, "random": TENSOR, "matrix": TEXT},
    **{"validation": or_none(TEXT), "drift": {"*": TENSOR}, "training": {**STATE_SHAPE, "best": {"*": TENSOR}}},
    "seconds": dict.fromkeys(("train", "evaluate", "consolidate"), AMOUNT),
}


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
    validation_acc: float | None = None  # ACC on the validation sets


@dataclass(frozen=True)
class RunContents:
    """Everything a run has measured."""

    folder: RunFolder
    digest: str  # computed from the settings, so that an edited `settings.json` does not pass for the original
    environment: Mapping[str, Any]
    matrix: AccuracyMatrix | None
    result: RunResult | None  # None until the run is finished
    ranks: Mapping[str, Sequence[int]]
    drift: Mapping[str, DriftHistogram]  # per layer, for inputs of the first task: the paper's interference activation

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Tells runs apart: benchmark, method, digest and seed."""
        return self.folder.benchmark, self.folder.method, self.digest, self.folder.seed

    @cached_property
    def metrics(self) -> Sequence[Mapping[str, Any]]:
        """The lines of metrics.jsonl, read on first use: there may be thousands, and most commands need none."""
        return self.folder.metrics()


def check(value: Any, shape: Shape, name: str = "") -> None:
    """Raises a ValueError that begins with `name` unless the value has this shape."""
    kind = TABLE if isinstance(shape, dict) else LIST if isinstance(shape, list) else shape
    if not kind.accepts(value) and not (kind.optional and value is None):
        raise ValueError(f"{name or 'it'} is {reprlib.repr(value)}, not {kind.words}")
    if isinstance(shape, list):
        for index, entry in enumerate(value):
            check(entry, shape[0], f"{name}[{index}]")
    elif isinstance(shape, dict):
        if missing := [key for key in shape if key not in value and key[-1] not in "?*"]:
            raise ValueError(f"{name or 'it'} lacks {', '.join(missing)}")
        for key, entry in value.items():
            if part := shape.get(key) or shape.get(f"{key}?") or shape.get("*"):
                check(entry, part, f"{name}.{key}" if name else key)


def check_alike(own: Any, saved: Any, name: str = "its state", *, nan: bool = False) -> None:
    """Raises a ValueError unless `saved` has the structure of `own`, the method's state at the start. `nan` allows NaN."""
    if isinstance(own, dict) and isinstance(saved, dict):
        for key in saved:
            check_alike(own.get(key), saved[key], f"{name}.{key}", nan=nan)
    elif not nan and isinstance(saved, Tensor) and saved.is_floating_point() and saved.isnan().any():
        raise ValueError(f"{name} holds NaN")
    elif isinstance(own, Tensor) and isinstance(saved, Tensor):
        if (own.dtype, own.ndim) != (saved.dtype, saved.ndim):
            raise ValueError(f"{name} is a {saved.ndim}-dimensional {saved.dtype} tensor")
    elif own is not None and saved is not None and not isinstance(saved, ALIKE.get(type(own), type(own))):
        raise ValueError(f"{name} is {reprlib.repr(saved)}, not {type(own).__name__}")


def read_checked(path: Path) -> dict[str, Any] | None:
    """Reads a JSON file of a run folder; None if there is no such file, RunError if its content has another shape."""
    if (data := read(path)) is None:
        return None
    try:
        check(content := parse_json(data), SHAPES[path.name])
    except ValueError as error:
        raise damaged(path, error) from error
    return content


def read_contents(folder: RunFolder) -> RunContents:
    """Reads all measurements of a run, typed and checked against each other; RunError if a file is damaged."""
    matrix, result = read_result(folder)
    environment, ranks, drift = folder.environment() or {}, folder.ranks() or {}, folder.drift() or {}
    for layer, parts in drift.items():
        rising = all(low < high for low, high in pairwise(parts["edges"]))
        if not rising or not 0 < len(parts["counts"]) == len(parts["edges"]) - 1:
            raise RunError(f"{folder.path / File.DRIFT}: {layer} should have n counts and n + 1 rising edges.")
    histograms = {
        layer: DriftHistogram(*(tuple(map(float, parts[part])) for part in DriftHistogram._fields))
        for layer, parts in drift.items()
    }
    numbers = result and {each.name: result[each.name] for each in fields(RunResult) if each.name in result}
    typed = RunResult(**numbers) if numbers else None
    return RunContents(folder, _digest(folder.settings), environment, matrix, typed, ranks, histograms)


def read_result(folder: RunFolder) -> tuple[AccuracyMatrix | None, dict[str, Any] | None]:
    """Reads a run's accuracies and its result, if it has one; RunError if they are damaged or contradict each other."""
    matrix, result = folder.matrix(), folder.result()
    if result is not None and (matrix is None or matrix.learned < matrix.tasks):
        raise RunError(
            f"{folder.path / File.RESULT} exists, but {File.ACCURACY} is missing or incomplete. {RUN_AGAIN}."
        )
    if result is not None and matrix is not None and abs(result["acc"] - (acc := average_accuracy(matrix))) > 1e-6:
        raise RunError(
            f"{folder.path / File.RESULT} says ACC {result['acc']:.4f}, but {File.ACCURACY} gives {acc:.4f}. {RUN_AGAIN}."
        )
    return matrix, result


def _digest(settings: Mapping[str, Any]) -> str:
    try:
        return Settings.from_dict(settings).digest
    except (UserError, ValueError, TypeError, AttributeError):  # settings of another release
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
