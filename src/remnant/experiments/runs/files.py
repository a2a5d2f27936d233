"""Files that are whole or not there, and errors of the disk as sentences a person can act on."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TEMPORARY = re.compile(r"\..+\.(\d+)\.tmp")


class RunError(RuntimeError):
    """Something about a run's files that the person at the keyboard can put right; the message says how."""


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns what the system says of a file into what happened, to what, and what to do now."""
    try:
        yield
    except OSError as error:
        raise RunError(_sentence(path, error)) from error


def write(path: Path, *pieces: bytes | memoryview) -> None:
    """Puts the pieces, one after another, in place at once: a temporary name in the same folder, fsync, rename.

    Failing, it leaves what was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with explained(path):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o666)
            try:
                for piece in pieces:
                    write_all(descriptor, piece)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        _sync_folder(path.parent)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Writes all of `data`: a single write may stop short, at 2 GB or just before the disk is full."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def read(path: Path) -> bytes | None:
    """The file's content; None where there is no such file."""
    with explained(path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def sweep(folder: Path) -> None:
    """Removes the temporary files of processes that died while writing here. For whoever holds the folder's lock."""
    with explained(folder / "*"):
        for entry in list(folder.iterdir()):
            match = TEMPORARY.fullmatch(entry.name)
            if match and _is_stale(int(match[1])):
                entry.unlink(missing_ok=True)


def _is_stale(pid: int) -> bool:
    """A process of our own number wrote it before us: in a container, every run may be number 7."""
    if pid == os.getpid():
        return True
    if os.name != "posix":  # where asking whether a process lives would end it
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # it lives, and is another user's
    return False


def _sync_folder(folder: Path) -> None:
    """Makes the rename itself survive a power cut, where the system lets a folder be synced."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sentence(path: Path, error: OSError) -> str:
    folder = path.parent
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return (
                f"The disk is full: {path} could not be written. What was there before is intact; "
                "free some space and continue."
            )
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return (
                f"{path} is out of reach ({error.strerror}). Give yourself the right to read and write in {folder}, "
                "or choose another folder for the runs."
            )
        case errno.ENOENT:
            return f"{folder} has vanished: it was moved or removed meanwhile. Put it back, or start the run again."
        case errno.ENOTDIR | errno.EEXIST:
            return f"There is a file in the way of {path}, where a folder is needed. Move it, or choose another folder."
        case _:
            return (
                f"{path} could not be read or written: {error.strerror or error}. See what is there, and to the disk."
            )
