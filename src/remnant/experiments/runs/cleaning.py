"""Finds runs that are unfinished, duplicate or corrupted, and removes them: only a run's own files, and under its lock."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from remnant.errors import RunError
from remnant.files import TEMPORARY, explained

from .contents import File
from .find import run_folders
from .folder import CHECKPOINT, RunFolder

UNFINISHED, DUPLICATE, CORRUPTED = KINDS = "unfinished", "duplicate", "corrupted"
OUR_PATH = re.compile(r"[0-9a-f]{8}/seed\d+")  # the end of a run's path; other programs have folders called seed1 too
BEING_WRITTEN = "is being written by another process"


class Unwanted(NamedTuple):
    """A run that may be removed, and why. `twin` is the run that a duplicate repeats."""

    path: Path
    kind: str
    reason: str
    twin: Path | None = None


def find_unwanted(root: Path) -> tuple[list[Unwanted], list[str]]:
    """Returns the unfinished, duplicate and corrupted runs at or below `root`, and a sentence for each run left alone."""
    if not root.is_dir():
        raise RunError(f"{root} is not a folder. Give a folder that contains run folders, such as runs.")
    unwanted: list[Unwanted] = []
    finished: dict[tuple[str, str, str, int], list[RunFolder]] = {}
    left: list[str] = []
    for path in run_folders(root):
        if path.is_symlink() or is_being_written(path):  # what a link points to may lie elsewhere
            left.append(f"{path} {'is a link' if path.is_symlink() else BEING_WRITTEN}")
            continue
        try:
            folder = RunFolder.open(path)
            contents = folder.read()
        except RunError as error:
            if OUR_PATH.fullmatch("/".join(path.resolve().parts[-2:])):
                problem = str(error).replace(f"{path}/", "").replace(str(path), "it")
                unwanted.append(Unwanted(path, CORRUPTED, problem.partition(". ")[0]))
            else:
                left.append(f"{path} cannot be read as a run, and is not in a place where remnant puts runs")
            continue
        if contents.result is None:
            tasks = contents.matrix and f"{contents.matrix.learned} of {contents.matrix.tasks} tasks done"
            unwanted.append(Unwanted(path, UNFINISHED, tasks or "no task done"))
        else:
            finished.setdefault(contents.key, []).append(folder)
    for folders in finished.values():
        repeated, others = _repeated(folders)
        unwanted += repeated
        left += others
    return sorted(unwanted, key=lambda each: (KINDS.index(each.kind), each.path)), left


def _repeated(folders: list[RunFolder]) -> tuple[list[Unwanted], list[str]]:
    """Returns the copies among runs with the same settings and seed, and a sentence for each run whose accuracies differ."""
    # The run where `remnant run` put it comes first, and copies elsewhere follow.
    first, *others = sorted(folders, key=lambda folder: (folder.moved, len(folder.path.parts), folder.path))
    copies = [other for other in others if other.matrix() == first.matrix()]
    return [Unwanted(copy.path, DUPLICATE, f"the same as {first.path}", first.path) for copy in copies], [
        f"{other.path} repeats {first.path} with other accuracies (remnant diff shows them)"
        for other in others
        if other not in copies
    ]


def is_being_written(path: Path) -> bool:
    """Whether a live process holds the lock of a run folder."""
    if (path / File.LOCK).is_file():
        try:
            with suppress(OSError), _locked(path):
                pass
        except RunError:
            return True
    return False


def remove_run(run: Unwanted, root: Path) -> None:
    """Removes the run's files, its folder, and the folders up to `root` that are then empty.

    Raises:
        RunError: A process writes to it, it has changed since it was found, or a file cannot be removed.
    """
    path = run.path
    with explained(path / "*"):
        with _locked(path):
            if run.kind == UNFINISHED and (path / File.RESULT).exists():
                raise RunError(f"{path} was not removed, because it has been finished since it was listed.")
            if run.twin is not None and not (run.twin / File.RESULT).is_file():
                raise RunError(f"{path} was not removed, because {run.twin}, which it repeats, is gone.")
            # The result goes first and the settings last, so that an interrupt leaves an unfinished run.
            for name in sorted(os.listdir(path), key=lambda name: (name != File.RESULT, name == File.SETTINGS)):
                own = name in [*File] or CHECKPOINT.fullmatch(name) or TEMPORARY.fullmatch(name)
                if own and name != File.LOCK:
                    (path / name).unlink(missing_ok=True)
        (path / File.LOCK).unlink(missing_ok=True)
        if others := sorted(os.listdir(path)):
            raise RunError(f"{path} still has {', '.join(others)}. Only the run's own files were removed.")
        path.rmdir()
    with suppress(OSError):  # a folder that is not empty ends the loop
        for folder in path.parents:
            if not folder.is_relative_to(root) or folder == root:
                break
            folder.rmdir()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the lock of a run folder, even if its settings cannot be read; RunError if another process holds it."""
    try:
        with FileLock(path / File.LOCK, timeout=0):
            yield
    except Timeout:
        raise RunError(f"{path} {BEING_WRITTEN}, so it was not removed.") from None
