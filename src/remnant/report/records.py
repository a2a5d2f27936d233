"""Reads all run folders for a report. Damaged runs are listed with the reason and left out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from remnant.experiments.paper import TIMES_FOLDER, Timing, load_timings
from remnant.experiments.runs import RunContents, RunError, RunFolder, run_folders

Timings = tuple[Mapping[str, Timing], str]  # of the methods that `remnant reproduce table2` timed; and the device


@dataclass(frozen=True)
class RunRecord(RunContents):
    """The contents of a run folder, and which run it is. `path` is relative to the folder that the report reads."""

    path: str
    benchmark: str
    method: str
    seed: int
    settings: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.benchmark, self.method, self.digest, self.seed

    @property
    def learned(self) -> int:
        return 0 if self.matrix is None else self.matrix.learned

    @property
    def progress(self) -> str:
        return f"{self.learned} of {self.matrix.tasks} tasks done" if self.matrix else "no task done"


class Damaged(NamedTuple):
    path: str
    problem: str


@dataclass(frozen=True)
class Reading:
    """All runs in order, the damaged ones, and remarks for the reader."""

    runs: tuple[RunRecord, ...]
    damaged: tuple[Damaged, ...]
    remarks: tuple[str, ...]
    times: Mapping[str, Timings]  # by benchmark


def read_runs(roots: Sequence[Path]) -> Reading:
    """Reads every run below these folders. If two have the same settings and seed, the first one counts."""
    runs: dict[tuple[str, str, str, int], RunRecord] = {}
    damaged: list[Damaged] = []
    remarks: list[str] = []
    timed: dict[str, Timings] = {}
    for root in roots:
        if not root.is_dir():
            raise RunError(f"{root} is not a folder. Give a folder that contains run folders, such as results or runs.")
        for path in run_folders(root):
            shown = path.relative_to(root).as_posix() if path != root else root.name
            try:
                folder = RunFolder.open(path)
                run = _record(folder, shown)
            except RunError as error:
                damaged.append(_damaged(shown, error, path))
                continue
            if run.digest != folder.digest:
                remarks.append(
                    f"{shown}: the settings were edited after the run had begun (their digest is {run.digest}, not "
                    f"{folder.digest}). The run is kept apart from runs of {folder.digest}."
                )
            if run.key in runs:
                remarks.append(
                    f"{shown} repeats the settings and the seed of {runs[run.key].path}, and is not counted."
                )
            runs.setdefault(run.key, run)
        for file in sorted((root / TIMES_FOLDER).glob("*.json")):
            try:
                timed.setdefault(file.stem, load_timings([root], file.stem))
            except RunError as error:
                damaged.append(_damaged(file.relative_to(root).as_posix(), error, file))
    if not (runs or damaged or timed):
        raise RunError(f"{', '.join(map(str, roots))} holds no run. Give a folder with runs, such as results or runs.")
    return Reading(tuple(runs[key] for key in sorted(runs)), tuple(damaged), tuple(remarks), timed)


def _record(folder: RunFolder, path: str) -> RunRecord:
    contents: dict[str, Any] = vars(folder.read())
    names: dict[str, Any] = {"benchmark": folder.benchmark, "method": folder.method, "seed": folder.seed}
    return RunRecord(**contents, **names, path=path, settings=folder.settings)


def _damaged(shown: str, error: RunError, path: Path) -> Damaged:
    """Removes the path from the message: the report names it beside the message."""
    return Damaged(shown, str(error).replace(f"{path}/", "").replace(str(path), "it"))
