"""Reads all run folders for a report. Damaged runs are listed with the reason and left out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from remnant.errors import RunError
from remnant.experiments.paper import TIMES_FOLDER, Timing, load_timings
from remnant.experiments.runs import RunContents, RunFolder, run_folders

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
    def remarks(self) -> list[str]:
        """A sentence if the settings were edited."""
        if self.digest == self.folder.digest:
            return []
        return [
            f"{self.path}: the settings were edited after the run had begun (their digest is {self.digest}, not "
            f"{self.folder.digest}). The run is kept apart from runs of {self.folder.digest}."
        ]

    @property
    def learned(self) -> int:
        return 0 if self.matrix is None else self.matrix.learned

    @property
    def progress(self) -> str:
        return f"{self.learned} of {self.matrix.tasks} tasks done" if self.matrix else "no task done"

    @property
    def position(self) -> str:
        """The task and the epoch that an unfinished run has reached."""
        tasks, epochs = self.matrix and self.matrix.tasks, self.settings.get("training", {}).get("epochs")
        task, epoch = self._reached
        return f"task {task + 1}{f' of {tasks}' if tasks else ''}, epoch {epoch}{f' of {epochs}' if epochs else ''}"

    @property
    def share_done(self) -> float:
        """The share of all tasks and epochs that an unfinished run has learned, if no task stops early."""
        task, epoch = self._reached
        epochs = self.settings.get("training", {}).get("epochs") or epoch or 1
        return round((task + min(epoch / epochs, 1)) / self.matrix.tasks, 3) if self.matrix else 0.0

    @property
    def _reached(self) -> tuple[int, int]:
        """The task, counted from 0, and the epoch of the last line of metrics, or the start of the next task."""
        last = self.metrics[-1] if self.metrics else {"task": 0, "epoch": 0}
        return (last["task"], last["epoch"]) if last["task"] >= self.learned else (self.learned, 0)


class Damaged(NamedTuple):
    path: str
    problem: str


class Reading(NamedTuple):
    """All runs in order, the damaged ones, remarks for the reader, and the times of each benchmark."""

    runs: tuple[RunRecord, ...]
    damaged: tuple[Damaged, ...]
    remarks: tuple[str, ...]
    times: Mapping[str, Timings]


def read_runs(roots: Sequence[Path]) -> Reading:
    """Reads every run below these folders. If two have the same settings and seed, the first one counts."""
    runs: dict[tuple[str, str, str, int], RunRecord] = {}
    damaged: list[Damaged] = []
    remarks: list[str] = []
    timed: dict[str, Timings] = {}
    for root in roots:
        if not root.is_dir():
            raise RunError(f"{root} is not a folder. Give a folder that contains run folders, such as results or runs.")
        for path in [*run_folders(root), *sorted((root / TIMES_FOLDER).glob("*.json"))]:
            shown = path.relative_to(root).as_posix() if path != root else root.name
            try:
                if path.is_file():
                    timed.setdefault(path.stem, load_timings([root], path.stem))
                else:
                    run = read_run(path, shown)
                    remarks += run.remarks
                    first = runs.setdefault(run.key, run)
                    if first is not run:
                        remarks.append(
                            f"{shown} repeats the settings and the seed of {first.path}, and is not counted."
                        )
            except RunError as error:  # the list has the path already, so the message need not repeat it
                damaged.append(Damaged(shown, str(error).replace(f"{path}/", "").replace(str(path), "it")))
    if not (runs or damaged or timed):
        raise RunError(
            f"{', '.join(map(str, roots))} contains no run. Give a folder with runs, such as results or runs."
        )
    return Reading(tuple(runs[key] for key in sorted(runs)), tuple(damaged), tuple(remarks), timed)


def read_run(path: Path, shown: str) -> RunRecord:
    folder = RunFolder.open(path)
    identity = {name: getattr(folder, name) for name in ("benchmark", "method", "seed", "settings")}
    return RunRecord(**vars(folder.read()), path=shown, **identity)
