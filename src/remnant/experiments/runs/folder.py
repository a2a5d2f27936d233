"""`runs/<benchmark>/<method>/<settings digest>/seed<k>/`: everything one run leaves behind."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import torch

from remnant.evaluation import AccuracyMatrix

from .files import RunError, explained, read, sweep, write
from .checkpoint import Checkpoints
from .environment import environment
from .json_file import canonical, damaged, read_json, write_json
from .lock import exclusive
from .metrics_log import MetricsLog
from .paths import place

__all__ = ["RunError", "RunFolder", "find_runs", "keep_results", "readable_runs"]

SETTINGS, ENVIRONMENT, ACCURACY = "settings.json", "environment.json", "accuracy.csv"
RANKS, RESULT, METRICS, LOCK = "ranks.json", "result.json", "metrics.jsonl", ".lock"
EXECUTION, DRIFT = "execution.json", "drift.json"
ABOUT: dict[str, type] = {"benchmark": str, "method": str, "digest": str, "seed": int, "settings": dict}  # in SETTINGS
SMALL = (SETTINGS, ENVIRONMENT, ACCURACY, RANKS, DRIFT)


class Settings(Protocol):
    """What a folder needs to know of a run's settings; `as_dict` is JSON."""

    @property
    def benchmark(self) -> str: ...

    @property
    def method(self) -> str: ...

    @property
    def digest(self) -> str: ...

    def as_dict(self) -> dict[str, Any]: ...


class RunFolder:
    """One run's files. Each is replaced at once, so that a kill at any moment leaves it as it was or as it is to be."""

    def __init__(self, path: Path, about: dict[str, Any], *, new: bool = False) -> None:
        self.path = path
        self.new = new  # made just now, and not found
        self.benchmark: str = about["benchmark"]
        self.method: str = about["method"]
        self.digest: str = about["digest"]
        self.seed: int = about["seed"]
        self.settings: dict[str, Any] = about["settings"]
        self._log = MetricsLog(path / METRICS)
        self._checkpoints = Checkpoints(path)

    @classmethod
    def create(
        cls,
        root: Path,
        settings: Settings,
        seed: int,
        *,
        device: torch.device | str | None = None,
        execution: Mapping[str, Any] | None = None,
    ) -> "RunFolder":
        """The folder of these settings and this seed under `root`, made or found. `device` is for environment.json.

        `execution`, for a new one, is in place before the settings make it a run: whoever resumes it finds how.
        """
        names = {"benchmark": settings.benchmark, "method": settings.method, "digest": settings.digest}
        about = json.loads(canonical({**names, "seed": seed, "settings": settings.as_dict()}))
        path = Path(root) / place(**names, seed=seed)
        with explained(path):
            path.mkdir(parents=True, exist_ok=True)
        found = read_json(path / SETTINGS)
        if found is None:
            if execution is not None:
                write_json(path / EXECUTION, execution)
            write_json(path / SETTINGS, about)
        elif canonical(found) != canonical(about):
            raise RunError(
                f"{path} holds a run with other settings than these. Was its {SETTINGS} edited? "
                "Move the folder away to start anew."
            )
        if not (path / ENVIRONMENT).exists():
            write_json(path / ENVIRONMENT, environment(device, settings.benchmark))
        return cls(path, about, new=found is None)

    @classmethod
    def find(cls, root: Path, settings: Settings, seed: int) -> "RunFolder | None":
        """The folder that `create` would find; None where it would make one."""
        path = Path(root) / place(settings.benchmark, settings.method, settings.digest, seed)
        return cls.open(path) if (path / SETTINGS).is_file() else None

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """The run in an existing folder."""
        path = Path(path)
        about = read_json(path / SETTINGS) if path.is_dir() else None
        if about is None:
            below = [run.path for run in readable_runs(path)[0][:1]]
            hint = f"There are runs further down, such as {below[0]}." if below else "A run's folder is called seed<k>."
            raise RunError(f"{path} is not a run: it has no {SETTINGS}. {hint}")
        if missing := ABOUT.keys() - about.keys():
            raise RunError(f"{path / SETTINGS} is not a run's: it lacks {', '.join(sorted(missing))}.")
        for name, kind in ABOUT.items():
            if type(about[name]) is not kind:
                raise RunError(f"{path / SETTINGS}: {name} is {about[name]!r}, which it cannot be.")
        return cls(path, about)

    @property
    def place(self) -> Path:
        """Where it stands under the root of all runs: benchmark/method/digest/seed."""
        return place(self.benchmark, self.method, self.digest, self.seed)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held by the one process that writes here; any other is refused with RunError. Cleans up after the dead."""
        with exclusive(self.path / LOCK):
            sweep(self.path)
            yield

    def record(self, **numbers: Any) -> None:
        """Appends one line to metrics.jsonl."""
        self._log.append(numbers)

    def metrics(self) -> list[dict[str, Any]]:
        return self._log.lines()

    def truncate_metrics(self, until: Callable[[dict[str, Any]], bool]) -> None:
        """Keeps the lines from the top as long as `until(line)` is true: those the checkpoint has seen, on resuming."""
        self._log.keep_while(until)

    def save_matrix(self, matrix: AccuracyMatrix) -> None:
        write(self.path / ACCURACY, matrix.to_csv().encode())

    def matrix(self) -> AccuracyMatrix | None:
        data = read(self.path / ACCURACY)
        try:
            return None if data is None else AccuracyMatrix.from_csv(data.decode())
        except ValueError as error:
            raise damaged(self.path / ACCURACY, error) from error

    def save_ranks(self, ranks: Mapping[str, Any]) -> None:
        """Directions added per layer and task, and capacities."""
        write_json(self.path / RANKS, ranks)

    def ranks(self) -> dict[str, Any] | None:
        return read_json(self.path / RANKS)

    def save_drift(self, histograms: Mapping[str, Any]) -> None:
        """The first task's interference activations: {layer: {"edges": [n + 1 numbers], "counts": [n numbers]}}."""
        write_json(self.path / DRIFT, histograms)

    def drift(self) -> dict[str, Any] | None:
        return read_json(self.path / DRIFT)

    def save_result(self, result: Mapping[str, Any]) -> None:
        """The last thing a run writes: it is what makes it finished."""
        write_json(self.path / RESULT, result)

    def result(self) -> dict[str, Any] | None:
        return read_json(self.path / RESULT)

    @property
    def finished(self) -> bool:
        return (self.path / RESULT).is_file()

    @property
    def begun(self) -> bool:
        """Whether an epoch was ever finished."""
        return self.finished or bool(self._checkpoints.numbered()) or bool(self.metrics())

    def remove(self) -> None:
        """Of a run that never began: its files, and the folders above that were for it alone. For who holds the lock."""
        with suppress(OSError):
            for name in (SETTINGS, EXECUTION, ENVIRONMENT, METRICS, LOCK):  # the settings first: without, it is no run
                (self.path / name).unlink(missing_ok=True)
            for folder in (self.path, *self.path.parents[: len(self.place.parts) - 1]):
                folder.rmdir()  # fails, and that is the end of it, where there is something else

    def save_execution(self, how: Mapping[str, Any]) -> None:
        """How the run is carried out (bit-equal or not, checkpoints): no setting, but what resuming it must know."""
        if self.execution() != how:
            write_json(self.path / EXECUTION, how)

    def execution(self) -> dict[str, Any] | None:
        return read_json(self.path / EXECUTION)

    def environment(self) -> dict[str, Any] | None:
        return read_json(self.path / ENVIRONMENT)

    def save_environment(self, found: Mapping[str, Any]) -> None:
        write_json(self.path / ENVIRONMENT, found)

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Keeps `state` (see `state_file.pack`) as the newest checkpoint, and the one before it."""
        self._log.sync()  # a checkpoint must not outlive the lines it has seen
        self._checkpoints.save(state)

    def load_checkpoint(self) -> tuple[dict[str, Any] | None, str | None]:
        """The newest whole state, and a sentence where a newer one is damaged; None where there is none."""
        return self._checkpoints.load()

    def clear_checkpoints(self) -> None:
        self._checkpoints.clear()

    def __repr__(self) -> str:
        return f"RunFolder('{self.path}')"


def find_runs(root: Path) -> list[RunFolder]:
    """Every run at or under `root` (of `runs/` or of `results/`), ordered by place and then by seed."""
    found, troubles = readable_runs(root)
    if troubles:
        raise RunError(troubles[0])
    return found


def readable_runs(root: Path) -> tuple[list[RunFolder], list[str]]:
    """The same, of those that can be read; and what is wrong with the others, a sentence each."""
    root = Path(root)
    folders = [root] if (root / SETTINGS).is_file() else [path.parent for path in root.rglob(f"seed*/{SETTINGS}")]
    found, troubles = [], []
    for folder in sorted(folders):
        try:
            found.append(RunFolder.open(folder))
        except RunError as error:
            troubles.append(str(error))
    return sorted(found, key=lambda run: (run.path.parent, run.seed)), troubles


def keep_results(run: RunFolder, target: Path) -> Path:
    """Copies a finished run's small files (no metrics, no checkpoints) to its place under `target`; returns where.

    Of another run of the same settings and seed nothing stays there, and its result goes first: no copy is of two.
    """
    if not run.finished:
        raise RunError(f"{run.path} is not finished: it has no {RESULT} yet. Resume it first.")
    kept = Path(target) / run.place
    with explained(kept):
        kept.mkdir(parents=True, exist_ok=True)
        if kept.samefile(run.path):
            return kept
        (kept / RESULT).unlink(missing_ok=True)
    for name in (*SMALL, RESULT):  # the result last: with it, the copy is whole
        data = read(run.path / name)
        if data is not None:
            write(kept / name, data)
        else:
            with explained(kept / name):
                (kept / name).unlink(missing_ok=True)
    return kept
