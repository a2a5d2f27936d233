"""Reads, writes and locks a run's files. Disk errors become sentences that say what to do."""

import errno
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from remnant.errors import UserError
from remnant.files import write_file

LOCK = ".lock"


class RunError(UserError, RuntimeError):
    """A run, or a file of a run, that the user can put right. The message says how."""


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
    write(path, (json.dumps(content, indent=2, default=as_number) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, or None if there is no such file."""
    data = read(path)
    if data is None:
        return None
    try:
        content = json.loads(data)
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
    except ValueError as error:
        raise damaged(path, error) from error
    return content


def canonical(content: Mapping[str, Any]) -> str:
    """The same text for the same content, as it would be after a round trip through a file."""
    return json.dumps(content, sort_keys=True, default=as_number)


def damaged(path: Path, error: Exception) -> RunError:
    return RunError(
        f"{path} is damaged ({error}). Remove its folder to run it again, or restore the file from a backup."
    )


def as_number(value: Any) -> Any:
    """For JSON: a NumPy or torch scalar as a Python number."""
    if getattr(value, "shape", None) == ():
        return value.item()
    raise TypeError(f"A run's files hold numbers, strings, lists and dicts, not {value!r} ({type(value).__name__}).")


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Holds the lock of a run folder. Refuses at once if another process, or this one, holds it already.

    The operating system drops the lock when its process ends, however it ends.
    """
    path = folder / LOCK
    lock = FileLock(path)
    with explained(path):
        if not folder.exists():  # some releases of filelock would create it
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        holder = _holder(path)  # read first: some releases empty the file when they try to lock it
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise RunError(
                f"{folder} is being written by {holder}. Wait until it has ended, or stop it, then try again."
            ) from None
    try:
        # The holder's name is only for the message above. A full disk must not stop the run here.
        with suppress(OSError):
            path.write_text(f"{os.getpid()} {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        with suppress(OSError):
            os.truncate(path, 0)
        lock.release()


def _holder(path: Path) -> str:
    with suppress(OSError):
        pid, _, host = path.read_text(encoding="utf-8", errors="replace").partition(" ")
        if pid.isdigit() and host != socket.gethostname():
            return f"process {pid} on {host}"
        if pid.isdigit():
            return f"process {pid}" + (" (this one)" if int(pid) == os.getpid() else "")
    return "another process"


def _sentence(path: Path, error: OSError) -> str:
    folder = path.parent
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return (
                f"The disk is full: {path} could not be written. Everything written before is intact; "
                "free some space and run the command again."
            )
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return (
                f"{path} cannot be accessed ({error.strerror}). Give yourself the right to read and write in {folder}, "
                "or choose another folder for the runs."
            )
        case errno.ENOENT:
            return (
                f"{folder} has vanished: it was moved or removed during the run. Put it back, or start the run again."
            )
        case errno.ENOTDIR | errno.EEXIST:
            return f"{path} needs a folder where there is a file. Move that file, or choose another folder."
        case errno.ENOLCK | errno.ENOSYS | errno.EOPNOTSUPP:
            return (
                f"{path} cannot be locked ({error.strerror}), and without a lock two processes could spoil one run. "
                "Choose a folder for the runs on a file system that supports locks."
            )
        case _:
            return f"{path} could not be read or written: {error.strerror or error}. Check the path and the disk."
