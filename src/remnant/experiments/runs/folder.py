"""The run folder, `runs/<benchmark>/<method>/<settings digest>/seed<k>/`: every file of one run."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from remnant.evaluation import AccuracyMatrix
from remnant.files import remove_stale

from ..settings import Settings
from .checkpoint import Checkpoints
from .contents import ACCURACY, DRIFT, RANKS, RESULT, RunContents, read_contents
from .files import LOCK, RunError, canonical, damaged, exclusive, explained, read, read_json, write, write_json
from .metrics_log import MetricsLog
from .provenance import environment, file_hashes

SETTINGS, ENVIRONMENT, EXECUTION, METRICS = "settings.json", "environment.json", "execution.json", "metrics.jsonl"
SMALL = (SETTINGS, ENVIRONMENT, ACCURACY, RANKS, DRIFT)

PLAIN_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9_-])?")

# The schema of settings.json, and of the settings in it. Settings of older releases may lack a section.
HEADER: dict[str, type] = {"benchmark": str, "method": str, "digest": str, "seed": int, "settings": dict}
TYPE_NAMES = {str: "text", int: "a whole number", dict: "a table"}
SECTIONS: dict[str, type] = {"protocol": str, "stream": dict, "network": dict, "training": dict, "options": dict}

Reader = Callable[["RunFolder"], dict[str, Any] | None]
Writer = Callable[["RunFolder", Mapping[str, Any]], None]


def _json_file(name: str) -> tuple[Reader, Writer]:
    """Two methods of `RunFolder` that read and write a JSON object; reading gives None if there is no such file."""

    def load(self: "RunFolder") -> dict[str, Any] | None:
        return read_json(self.path / name)

    def save(self: "RunFolder", content: Mapping[str, Any]) -> None:
        write_json(self.path / name, content)

    return load, save


class RunFolder:
    """One run's files. Each is replaced in one step, so a kill at any moment leaves the old or the new version.

    Get one from `create`, `open` or `find_runs`. `read()` gives all measurements typed and checked; `result()`,
    `matrix()`, `ranks()` and `metrics()` give single files as they are, and None if there is no such file.
    """

    def __init__(self, path: Path, header: dict[str, Any], *, new: bool = False) -> None:
        self.path = path
        self.new = new  # `create` made it, and did not find it
        self.benchmark: str = header["benchmark"]
        self.method: str = header["method"]
        self.digest: str = header["digest"]
        self.seed: int = header["seed"]
        self.settings: dict[str, Any] = header["settings"]
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
        """Makes or finds the folder of these settings and this seed below `root`.

        Args:
            device: for environment.json.
            execution: for execution.json of a new run. It is written before settings.json makes the folder a run, so
                that a run can always be resumed in the way it was started.
        """
        names = {"benchmark": settings.benchmark, "method": settings.method, "digest": settings.digest}
        header = json.loads(canonical({**names, "seed": seed, "settings": settings.as_dict()}))
        path = Path(root) / run_path(**names, seed=seed)
        with explained(path):
            path.mkdir(parents=True, exist_ok=True)
        found = read_json(path / SETTINGS)
        if found is None:
            if execution is not None:
                write_json(path / EXECUTION, execution)
            write_json(path / SETTINGS, header)
        elif canonical(found) != canonical(header):
            raise RunError(
                f"{path} holds a run with other settings than these. Was its {SETTINGS} edited? "
                "Move the folder away to start the run again."
            )
        if not (path / ENVIRONMENT).exists():
            write_json(path / ENVIRONMENT, environment(device, file_hashes(header["settings"])))
        return cls(path, header, new=found is None)

    @classmethod
    def find(cls, root: Path, settings: Settings, seed: int) -> "RunFolder | None":
        """The folder that `create` would find, or None if it would make one."""
        path = Path(root) / run_path(settings.benchmark, settings.method, settings.digest, seed)
        return cls.open(path) if (path / SETTINGS).is_file() else None

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """The run in an existing folder; RunError if there is none, or if its settings.json is not valid."""
        path = Path(path)
        header = read_json(path / SETTINGS) if path.is_dir() else None
        if header is None:
            below = [run.path for run in readable_runs(path)[0][:1]]
            hint = f"There are runs further down, such as {below[0]}." if below else "A run's folder is called seed<k>."
            raise RunError(f"{path} is not a run: it has no {SETTINGS}. {hint}")
        _check_header(path / SETTINGS, header)
        return cls(path, header)

    @property
    def relative_path(self) -> Path:
        """The path below the folder of all runs: benchmark/method/digest/seed."""
        return run_path(self.benchmark, self.method, self.digest, self.seed)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps every other process from writing here; raises RunError if one does. Removes what dead ones left."""
        with exclusive(self.path):
            with explained(self.path / "*"):
                remove_stale(self.path)
            yield

    def read(self) -> RunContents:
        """All measurements, typed and checked against each other; RunError if a file is damaged."""
        return read_contents(self)

    def record(self, **numbers: Any) -> None:
        """Appends one line to metrics.jsonl."""
        self._log.append(numbers)

    def metrics(self) -> list[dict[str, Any]]:
        return self._log.lines()

    def truncate_metrics(self, until: Callable[[dict[str, Any]], bool]) -> None:
        """Keeps the lines from the top as long as `until(line)` is true: on resuming, those before the checkpoint."""
        self._log.keep_while(until)

    def save_matrix(self, matrix: AccuracyMatrix) -> None:
        write(self.path / ACCURACY, matrix.to_csv().encode())

    def matrix(self) -> AccuracyMatrix | None:
        data = read(self.path / ACCURACY)
        try:
            return None if data is None else AccuracyMatrix.from_csv(data.decode())
        except ValueError as error:
            raise damaged(self.path / ACCURACY, error) from error

    ranks, save_ranks = _json_file(RANKS)  # {layer: [directions added by each task]}
    drift, save_drift = _json_file(DRIFT)  # {layer: {"edges": [n + 1 numbers], "counts": [n numbers]}}
    result, save_result = _json_file(RESULT)  # written last: it marks the run as finished
    environment, save_environment = _json_file(ENVIRONMENT)
    execution, save_execution = _json_file(EXECUTION)  # how the run is carried out: no setting, but resuming needs it

    @property
    def finished(self) -> bool:
        return (self.path / RESULT).is_file()

    @property
    def finished_at(self) -> float:
        """When the result was written, in seconds since 1970."""
        return (self.path / RESULT).stat().st_mtime

    @property
    def begun(self) -> bool:
        """Whether at least one epoch was completed."""
        return self.finished or bool(self._checkpoints.numbered()) or bool(self.metrics())

    def remove(self) -> None:
        """Removes a run that never began, and the folders above it if they are empty. Requires the lock."""
        with suppress(OSError):
            # The settings go first: without them the folder is not a run.
            for name in (SETTINGS, EXECUTION, ENVIRONMENT, METRICS, LOCK):
                (self.path / name).unlink(missing_ok=True)
            for folder in (self.path, *self.path.parents[: len(self.relative_path.parts) - 1]):
                folder.rmdir()  # fails, and ends the loop, if there is something else in it

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Keeps `state` (see `remnant.memory.codec`) as the newest checkpoint, and the previous one."""
        self._log.sync()  # the lines before a checkpoint must survive whenever it does
        self._checkpoints.save(state)

    def load_checkpoint(self) -> tuple[dict[str, Any] | None, str | None]:
        """The newest complete state or None, and a sentence for the user if a newer one is damaged."""
        return self._checkpoints.load()

    def clear_checkpoints(self) -> None:
        self._checkpoints.clear()

    def __repr__(self) -> str:
        return f"RunFolder('{self.path}')"


def _check_header(file: Path, header: Mapping[str, Any]) -> None:
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


def run_path(benchmark: str, method: str, digest: str, seed: int) -> Path:
    """The path of a run below the folder of all runs."""
    return Path(folder_name(benchmark), folder_name(method), folder_name(digest), f"seed{seed}")


def folder_name(name: str) -> str:
    """The name itself if it is plain. `dir/own.py:stream` becomes `own.py-stream-` and a hash of the whole name."""
    if PLAIN_NAME.fullmatch(name):
        return name
    end = re.sub(r"[^A-Za-z0-9._-]+", "-", re.split(r"[/\\]", name)[-1]).strip("-._")[:40]
    mark = blake2b(name.encode(errors="surrogatepass"), digest_size=4).hexdigest()
    return f"{end}-{mark}" if end else mark


def find_runs(root: Path) -> list[RunFolder]:
    """Every run at or below `root`, such as `runs/` or `results/`, ordered by path and seed.

    Raises:
        RunError: if the settings of a run cannot be read.
    """
    found, problems = readable_runs(root)
    if problems:
        raise RunError(problems[0])
    return found


def readable_runs(root: Path) -> tuple[list[RunFolder], list[str]]:
    """Every run at or below `root` that can be read, and a sentence for each that cannot."""
    found, problems = [], []
    for path in run_folders(root):
        try:
            if (path / SETTINGS).is_file():
                found.append(RunFolder.open(path))
        except RunError as error:
            problems.append(str(error))
    return sorted(found, key=lambda run: (run.path.parent, run.seed)), problems


def run_folders(root: Path) -> list[Path]:
    """Every folder at or below `root` with files of a run, even if settings.json is missing."""
    if (root / SETTINGS).is_file():
        return [root]
    files = (SETTINGS, ACCURACY, RANKS, RESULT, METRICS)
    return sorted(path for path in root.rglob("seed*") if path.is_dir() and any((path / f).is_file() for f in files))


def keep_results(run: RunFolder, target: Path) -> Path:
    """Copies a finished run's small files (no metrics, no checkpoints) to the same path below `target`.

    An older copy is replaced as a whole: its result is removed first and the new one is written last.

    Returns:
        The folder of the copy.
    """
    if not run.finished:
        raise RunError(f"{run.path} is not finished: it has no {RESULT} yet. Resume it first.")
    kept = Path(target) / run.relative_path
    with explained(kept):
        kept.mkdir(parents=True, exist_ok=True)
        if kept.samefile(run.path):
            return kept
        (kept / RESULT).unlink(missing_ok=True)
    for name in (*SMALL, RESULT):
        data = read(run.path / name)
        if data is not None:
            write(kept / name, data)
        else:
            with explained(kept / name):
                (kept / name).unlink(missing_ok=True)
    return kept
