"""Run folders as the report needs them. What cannot be read is named and left out; nothing stops at it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite, isnan
from pathlib import Path
from typing import Any, NamedTuple

from remnant.evaluation import AccuracyMatrix, average_accuracy
from remnant.experiments.paper import times
from remnant.experiments.paper.times import Timing
from remnant.experiments.runs.folder import ACCURACY, DRIFT, METRICS, RANKS, RESULT, SETTINGS, RunError, RunFolder
from remnant.experiments.runs.json_file import read_json
from remnant.experiments.settings.resolve import Settings, SettingsError

FILES = (SETTINGS, ACCURACY, RANKS, RESULT, METRICS)


class Histogram(NamedTuple):
    """How often a value fell between edges[i] and edges[i + 1]."""

    edges: tuple[float, ...]
    counts: tuple[float, ...]


@dataclass(frozen=True)
class Measured:
    """What `result.json` says, as fractions; None for what is not defined (BWT of joint training)."""

    acc: float
    bwt: float | None
    learning_accuracy: float | None
    seconds: Mapping[str, float]
    capacity: float | None
    memory_bytes: float | None


@dataclass(frozen=True)
class Run:
    """One run folder. `measured` is None as long as it is not finished.

    `drift` is the interference activation of the paper (Sec. 7, "Controlling Forgetting"), ΔW_{1→T}·x₁ of each layer on
    inputs of the first task, as `drift.json` holds it: {layer: {"edges": [n + 1 numbers], "counts": [n numbers]}}.
    """

    place: str  # below the folder that was read
    benchmark: str
    method: str
    digest: str
    seed: int
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    matrix: AccuracyMatrix | None
    measured: Measured | None
    ranks: Mapping[str, Sequence[int]] = field(default_factory=dict)
    drift: Mapping[str, Histogram] = field(default_factory=dict)
    metrics: Sequence[Mapping[str, Any]] = ()

    @property
    def learned(self) -> int:
        return 0 if self.matrix is None else self.matrix.learned


class Timed(NamedTuple):
    """Methods of a benchmark timed on equal terms (`remnant reproduce table2`), and on what."""

    methods: Mapping[str, Timing]
    device: str


class Damaged(NamedTuple):
    place: str
    why: str


@dataclass(frozen=True)
class Reading:
    """All runs, ordered; those left out; and what a reader should know of the rest."""

    runs: tuple[Run, ...]
    damaged: tuple[Damaged, ...]
    remarks: tuple[str, ...]
    times: Mapping[str, Timed] = field(default_factory=dict)  # by benchmark


def read_runs(roots: Iterable[Path]) -> Reading:
    """Every run below these folders. Where two have the same settings and seed, the first counts."""
    runs: dict[tuple[str, str, str, int], Run] = {}
    damaged: list[Damaged] = []
    remarks: list[str] = []
    timed: dict[str, Timed] = {}
    for root in roots:
        if not root.is_dir():
            raise RunError(f"{root} is not a folder. Give one with run folders in it, such as results or runs.")
        for folder in _folders(root):
            place = folder.relative_to(root).as_posix() if folder != root else root.name
            try:
                run, remark = _read(folder, place)
            except (RunError, ValueError) as error:
                damaged.append(Damaged(place, _without(str(error), folder)))
                continue
            remarks += remark
            key = (run.benchmark, run.method, run.digest, run.seed)
            if key in runs:
                remarks.append(
                    f"{place} has the settings and the seed of {runs[key].place}, which counts; it does not."
                )
                continue
            runs[key] = run
        for path in sorted((root / times.FOLDER).glob("*.json")):
            try:
                timed.setdefault(path.stem, Timed(*times.load([root], path.stem)))
            except RunError as error:
                damaged.append(Damaged(path.relative_to(root).as_posix(), _without(str(error), path)))
    return Reading(tuple(runs[key] for key in sorted(runs)), tuple(damaged), tuple(remarks), timed)


def _folders(root: Path) -> list[Path]:
    if (root / SETTINGS).is_file():
        return [root]
    found = (path for path in root.rglob("seed*") if path.is_dir() and any((path / name).is_file() for name in FILES))
    return sorted(found)


def _read(folder: Path, place: str) -> tuple[Run, list[str]]:
    opened = RunFolder.open(folder)
    _check(opened)
    digest = _digest(opened.settings)
    remarks = []
    if digest != opened.digest:
        remarks.append(
            f"{place}: its settings are not those it was begun with (their digest is {digest}, "
            f"{SETTINGS} says {opened.digest}). It is kept apart from runs of {opened.digest}."
        )
    matrix = opened.matrix()
    measured = _measured(opened.result(), matrix)
    run = Run(
        place,
        opened.benchmark,
        opened.method,
        digest,
        opened.seed,
        opened.settings,
        opened.environment() or {},
        matrix,
        measured,
        _ranks(opened.ranks()),
        read_drift(folder / DRIFT),
        opened.metrics(),
    )
    return run, remarks


def _check(opened: RunFolder) -> None:
    """That the settings in settings.json are made of what a run's are."""
    own = opened.settings
    for name, said in (("benchmark", opened.benchmark), ("method", opened.method)):
        if own.get(name, said) != said:
            raise ValueError(f"{SETTINGS}: {name} is {said!r} and, among the settings, {own[name]!r}.")
    inside: dict[str, type] = {"protocol": str, "stream": dict, "network": dict, "training": dict, "options": dict}
    for name, kind in inside.items():
        if name in own and type(own[name]) is not kind:
            raise ValueError(f"{SETTINGS}: {name} is {own[name]!r}, which it cannot be.")


def _digest(settings: Mapping[str, Any]) -> str:
    """Taken from the settings themselves: an edited file must not pass for what it was."""
    try:
        return Settings.from_dict(settings).digest
    except (SettingsError, ValueError, TypeError, AttributeError):  # of another release: apart, by what they are
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def _measured(result: Mapping[str, Any] | None, matrix: AccuracyMatrix | None) -> Measured | None:
    if result is None:
        return None
    if matrix is None or matrix.learned < matrix.tasks:
        raise ValueError(f"{RESULT} says it is finished, but {ACCURACY} is missing or not whole.")
    acc = _number(result, "acc")
    if acc is None or not 0 <= acc <= 1:
        raise ValueError(f"{RESULT}: acc is {result.get('acc')!r}, not a fraction between 0 and 1.")
    if abs(acc - average_accuracy(matrix)) > 1e-6:
        raise ValueError(f"{RESULT} says ACC {acc:.4f}, {ACCURACY} gives {average_accuracy(matrix):.4f}.")
    seconds = result.get("seconds")
    if not isinstance(seconds, dict):
        raise ValueError(f"{RESULT}: seconds is {seconds!r}, not a number for each of train, evaluate, consolidate.")
    return Measured(
        acc,
        _number(result, "bwt"),
        _number(result, "learning_accuracy"),
        {str(part): float(_number(seconds, part) or 0.0) for part in seconds},
        _number(result, "capacity"),
        _number(result, "memory_bytes"),
    )


def _number(content: Mapping[str, Any], key: str) -> float | None:
    value = content.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value in (float("inf"), float("-inf")):
        raise ValueError(f"{RESULT}: {key} is {value!r}, not a number.")
    return None if isnan(value) else float(value)


def _ranks(content: Mapping[str, Any] | None) -> dict[str, list[int]]:
    for layer, added in (content or {}).items():
        if not isinstance(added, list) or not all(isinstance(k, int) for k in added):
            raise ValueError(f"{RANKS}: {layer} should have one whole number a task, not {added!r}.")
    return dict(content or {})


def read_drift(path: Path) -> dict[str, Histogram]:
    """The histograms of `drift.json` (see `Run`); none where there is no such file."""
    found = {}
    for layer, histogram in (read_json(path) or {}).items():
        try:
            edges, counts = (tuple(float(x) for x in histogram[part]) for part in ("edges", "counts"))
        except (TypeError, KeyError, ValueError):
            raise ValueError(f"{path.name}: {layer} should have lists of numbers `edges` and `counts`.") from None
        rising = all(low < high for low, high in pairwise(edges))
        if len(edges) != len(counts) + 1 or not counts or not rising or not all(map(isfinite, edges)):
            raise ValueError(f"{path.name}: {layer} should have n counts and n + 1 rising edges.")
        if not all(isfinite(count) and count >= 0 for count in counts):
            raise ValueError(f"{path.name}: {layer} has a count that is no count.")
        found[layer] = Histogram(edges, counts)
    return found


def _without(message: str, folder: Path) -> str:
    """The message without the way to the folder, which is named beside it."""
    return message.replace(f"{folder}/", "").replace(str(folder), "it")
