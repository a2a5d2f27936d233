"""The run folder, `runs/<benchmark>/<method>/<settings digest>/seed<k>/`: every file of one run."""

import errno
import json
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from itertools import takewhile
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from remnant.errors import RunError
from remnant.evaluation import AccuracyMatrix
from remnant.files import damaged, explained, parse_json, read, remove_stale, to_json, write, write_all, write_json
from remnant.memory import codec

from ..settings import Settings
from .contents import SHAPES, File, check, read_checked, read_contents
from .provenance import environment

PLAIN_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9_-])?")
CHECKPOINT = re.compile(r"checkpoint-(\d{6,})\.safetensors")
KEPT_CHECKPOINTS = 2


def run_path(benchmark: str, method: str, digest: str, seed: int) -> Path:
    """The path of a run below the folder of all runs."""
    return Path(folder_name(benchmark), folder_name(method), folder_name(digest), f"seed{seed}")


def folder_name(name: str) -> str:
    """Returns a plain name as it is. `dir/own.py:stream` becomes `own.py-stream-` and a hash of the whole name."""
    if PLAIN_NAME.fullmatch(name):
        return name
    end = re.sub(r"[^A-Za-z0-9._-]+", "-", re.split(r"[/\\]", name.rstrip("/"))[-1]).strip("-._")[:40]
    mark = blake2b(name.encode(errors="surrogatepass"), digest_size=4).hexdigest()
    return f"{end}-{mark}" if end else mark


Reader = Callable[["RunFolder"], dict[str, Any] | None]
Writer = Callable[["RunFolder", Mapping[str, Any]], None]


def _json_file(name: str) -> tuple[Reader, Writer]:
    """Returns two methods of `RunFolder` that read and write a JSON file. Reading a missing file gives None."""

    def load(self: "RunFolder") -> dict[str, Any] | None:
        return read_checked(self.path / name)

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
        self.new = new  # whether `create` has just made it
        self.benchmark: str = header["benchmark"]
        self.method: str = header["method"]
        self.digest: str = header["digest"]
        self.seed: int = header["seed"]
        self.settings: dict[str, Any] = header["settings"]
        # Below the folder of all runs.
        self.relative_path = run_path(self.benchmark, self.method, self.digest, self.seed)
        self._damaged: set[Path] = set()  # checkpoints that `load_checkpoint` could not read

    @classmethod
    def create(
        cls, root: Path, settings: Settings, seed: int, *, execution: Mapping[str, Any] | None = None
    ) -> "RunFolder":
        """Finds or makes the folder of these settings and this seed below `root`. `execution` is written for a new run."""
        names = {"benchmark": settings.benchmark, "method": settings.method, "digest": settings.digest}
        content = {**names, "seed": seed, "settings": settings.as_dict()}
        header = json.loads(to_json(content, sort_keys=True))
        path = Path(root) / run_path(**names, seed=seed)
        with explained(path):
            path.mkdir(parents=True, exist_ok=True)
        found = read_checked(path / File.SETTINGS)
        if found is None:
            if execution is not None:  # first, so that every run can be resumed in the way it was started
                write_json(path / File.EXECUTION, execution)
            write_json(path / File.SETTINGS, header)
        elif json.dumps(found, sort_keys=True) != json.dumps(header, sort_keys=True):  # 1 is not true
            raise RunError(
                f"{path} contains a run with different settings. Was its {File.SETTINGS} edited? "
                "Move the folder away to start the run again."
            )
        if not (path / File.ENVIRONMENT).exists():
            write_json(path / File.ENVIRONMENT, environment(settings=header["settings"]))
        return cls(path, header, new=found is None)

    @classmethod
    def find(cls, root: Path, settings: Settings, seed: int) -> "RunFolder | None":
        """Returns the folder that `create` would find, or None if `create` would make one."""
        path = Path(root) / run_path(settings.benchmark, settings.method, settings.digest, seed)
        return cls.open(path) if (path / File.SETTINGS).is_file() else None

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Opens the run in an existing folder; RunError if there is none, or if its settings.json is not valid."""
        path = Path(path)
        header = read_checked(path / File.SETTINGS) if path.is_dir() else None
        if header is None and not path.exists():
            raise RunError(f"There is no folder {path}. Give a run's folder, or one with a single run in it.")
        if header is None:
            hint = "A run's folder is called seed<k>."
            if below := min(path.rglob(f"seed*/{File.SETTINGS}"), default=None):
                hint = f"It contains runs, such as {below.parent}."
            raise RunError(f"{path} is not a run: it has no {File.SETTINGS}. {hint}")
        for name in ("benchmark", "method"):
            if (other := header["settings"].get(name, header[name])) != header[name]:
                raise RunError(f"{path / File.SETTINGS}: {name} is {header[name]!r}, but {other!r} among the settings.")
        return cls(path, header)

    @contextmanager
    def lock(self, patience: float = 0.3) -> Iterator[None]:
        """Keeps every other process from writing here; raises RunError if one still does after `patience` seconds.

        By default it waits for a moment, since `remnant report --watch` takes the lock for an instant to see which runs are
        under way. Removes temporary files of killed processes. The operating system drops the lock when its process ends.
        """
        path = self.path / File.LOCK
        lock = FileLock(path)
        with explained(path):
            if not self.path.exists():  # some releases of filelock would create it
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            holder = ""
            with suppress(OSError):  # read first: some releases empty the file when they try to lock it
                holder = path.read_text(encoding="utf-8", errors="replace")
            try:
                lock.acquire(timeout=patience)
            except Timeout:
                advice = "Wait for it to finish, or stop it, then try again."
                raise RunError(f"{self.path} is being written by {_process(holder)}. {advice}") from None
        try:
            # The holder's name is only for the message above. A full disk must not stop the run here.
            with suppress(OSError):
                path.write_text(f"{os.getpid()} {socket.gethostname()}", encoding="utf-8")
            with explained(self.path / "*"):
                remove_stale(self.path)
            yield
        finally:
            with suppress(OSError):
                os.truncate(path, 0)
            lock.release()

    read = read_contents
    ranks, save_ranks = _json_file(File.RANKS)
    drift, save_drift = _json_file(File.DRIFT)
    result, save_result = _json_file(File.RESULT)
    environment, save_environment = _json_file(File.ENVIRONMENT)
    execution, save_execution = _json_file(File.EXECUTION)

    def save_matrix(self, matrix: AccuracyMatrix) -> None:
        write(self.path / File.ACCURACY, matrix.to_csv().encode())

    def matrix(self) -> AccuracyMatrix | None:
        data = read(self.path / File.ACCURACY)
        try:
            return None if data is None else AccuracyMatrix.from_csv(data.decode())
        except ValueError as error:
            raise damaged(self.path / File.ACCURACY, error) from error

    def record(self, **numbers: Any) -> None:
        """Appends a line to metrics.jsonl, and removes an incomplete line before it. If it fails, nothing is added."""
        path, data = self.path / File.METRICS, to_json(numbers)
        with explained(path), path.open("a+b", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(end - 1, 0))
            if file.read(1) not in (b"", b"\n"):
                end = path.read_bytes().rfind(b"\n") + 1
                file.truncate(end)
            try:
                write_all(file.fileno(), data)
            except BaseException:
                file.truncate(end)
                raise

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, except those that are cut short or hold something else."""
        lines = []
        for text in (read(self.path / File.METRICS) or b"").splitlines(keepends=True):
            with suppress(ValueError):
                check(line := parse_json(text), SHAPES[File.METRICS])
                if text.endswith(b"\n"):
                    lines.append(line)
        return lines

    def truncate_metrics(self, last: tuple[int, int] = (0, 0)) -> int:
        """Keeps the lines up to the `last` task and epoch, where a checkpoint continues. Returns their number."""
        kept = list(takewhile(lambda line: (line["task"], line["epoch"]) <= last, self.metrics()))
        data = b"".join(map(to_json, kept))
        if data != (read(self.path / File.METRICS) or b""):
            write(self.path / File.METRICS, data)
        return len(kept)

    def save_checkpoint(
        self, state: dict[str, Any], matrix: AccuracyMatrix | None = None, ranks: Mapping[str, Any] | None = None
    ) -> None:
        """Keeps `state` (see `remnant.memory.saving.codec`) as the newest checkpoint, and the one before it.

        The matrix and the ranks of a finished task are saved first: a run that resumes after it never writes them again.
        """
        if matrix is not None:
            self.save_matrix(matrix)
        if ranks:
            self.save_ranks(ranks)
        metrics = self.path / File.METRICS
        if metrics.exists():  # the lines before a checkpoint must survive whenever it does
            with explained(metrics), metrics.open("rb") as file:
                os.fsync(file.fileno())
        pieces = codec.pack(state)
        number = max(self._checkpoints(), default=0) + 1
        write(self.path / f"checkpoint-{number:06d}.safetensors", *pieces)
        self.clear_checkpoints(keep=KEPT_CHECKPOINTS)

    def load_checkpoint(self) -> tuple[dict[str, Any] | None, str | None]:
        """Returns the newest complete state or None, and a sentence for the user if a newer one is damaged."""
        state, problems, consequence = None, [], "No complete checkpoint is left: the run starts again."
        for path in self._checkpoints().values():
            try:
                with explained(path):
                    state = codec.read(path)
                consequence = f"Continuing from the previous one, {path.name}."
                break
            except codec.VersionError as error:
                raise RunError(f"{path}: {error}. Resume with the release that wrote it, or remove it.") from error
            except (codec.DamagedError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
                self._damaged.add(path)
                problems.append(f"{path} is damaged: {error}.")
        return state, " ".join([*problems, consequence]) if problems else None

    def clear_checkpoints(self, keep: int = 0) -> None:
        """Removes all checkpoints but the newest `keep` complete ones."""
        found = list(self._checkpoints().values())
        kept = [path for path in found if path not in self._damaged][:keep]
        for path in found:
            if path not in kept:
                with explained(path), suppress(FileNotFoundError):
                    os.unlink(path)
                self._damaged.discard(path)

    def _checkpoints(self) -> dict[int, Path]:
        """The checkpoint files by number, newest first."""
        with explained(self.path / "*"):
            matches = filter(None, map(CHECKPOINT.fullmatch, os.listdir(self.path)))
        return dict(sorted(((int(match[1]), self.path / match[0]) for match in matches), reverse=True))

    @property
    def finished(self) -> bool:
        return (self.path / File.RESULT).is_file()

    @property
    def moved(self) -> bool:
        """Whether it is not where `create` puts it."""
        return not self.path.resolve().match(str(self.relative_path))

    @property
    def begun(self) -> bool:
        """Whether at least one epoch was completed."""
        return self.finished or bool(self._checkpoints()) or bool(self.metrics())

    def remove(self) -> None:
        """Removes a run that never began, and the folders above it if they are empty. Requires the lock."""
        with suppress(OSError):
            # The settings go first: without them the folder is not a run.
            for name in (File.SETTINGS, File.EXECUTION, File.ENVIRONMENT, File.METRICS, File.LOCK):
                (self.path / name).unlink(missing_ok=True)
            for folder in (self.path, *self.path.parents[: len(self.relative_path.parts) - 1]):
                folder.rmdir()  # fails, and ends the loop, if there is something else in it

    def __repr__(self) -> str:
        return f"RunFolder('{self.path}')"


def _process(holder: str) -> str:
    """Names the process that holds a lock, from what it wrote into the lock file."""
    pid, _, host = holder.partition(" ")
    if not pid.isdigit():
        return "another process"
    if host != socket.gethostname():
        return f"process {pid} on {host}"
    return f"process {pid}" + (" (this one)" if int(pid) == os.getpid() else "")
