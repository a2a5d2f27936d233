"""Reads and writes a run's files. Disk errors become sentences that say what to do."""

import errno
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

from remnant.errors import UserError
from remnant.files import write_file

PLAIN_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9_-])?")


class RunError(UserError, RuntimeError):
    """A run, or a file of a run, that the user can put right. The message says how."""


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


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns an OSError about `path` into a RunError that says what happened and what to do."""
    try:
        yield
    except OSError as error:
        raise RunError(_sentence(path, error)) from error


def write(path: Path, *pieces: bytes | memoryview) -> None:
    """Replaces a file in one step (see `remnant.files`)."""
    with explained(path):
        write_file(path, *pieces)


def read(path: Path) -> bytes | None:
    """The file's content, or None if there is no such file."""
    with explained(path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replaces a file with a JSON object. NumPy and torch scalars become numbers."""
    write(path, (json.dumps(content, indent=2, default=as_number) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, or None if there is no such file."""
    if (data := read(path)) is None:
        return None
    try:
        content = json.loads(data)
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
    except ValueError as error:
        raise damaged(path, error) from error
    return content


def damaged(path: Path, error: Exception) -> RunError:
    """The error about a file whose content makes no sense."""
    return RunError(
        f"{path} is damaged ({error}). Remove its folder to run it again, or restore the file from a backup."
    )


def as_number(value: Any) -> Any:
    if getattr(value, "shape", None) == ():
        return value.item()
    raise TypeError(f"A run's files hold numbers, strings, lists and dicts, not {value!r} ({type(value).__name__}).")


def _sentence(path: Path, error: OSError) -> str:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            problem = f"The disk is full: {path} could not be written."
            return f"{problem} Everything written before is intact; free some space and run the command again."
        case errno.EROFS | errno.EACCES | errno.EPERM:
            advice = (
                f"Give yourself the right to read and write in {path.parent}, or choose another folder for the runs."
            )
            return f"{path} cannot be accessed ({error.strerror}). {advice}"
        case errno.ENOENT:
            advice = "Put it back, or start the run again."
            return f"{path.parent} has vanished: it was moved or removed during the run. {advice}"
        case errno.ENOTDIR | errno.EEXIST:
            return f"{path} needs a folder where there is a file. Move that file, or choose another folder."
        case errno.ENOLCK | errno.ENOSYS | errno.EOPNOTSUPP:
            problem = (
                f"{path} cannot be locked ({error.strerror}), and without a lock two processes could spoil one run."
            )
            return f"{problem} Choose a folder for the runs on a file system that supports locks."
        case _:
            return f"{path} could not be read or written: {error.strerror or error}. Check the path and the disk."
