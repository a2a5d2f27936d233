"""Reads and writes files. A file is complete or not there at all, and errors of the disk say what to do."""

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from .errors import RunError

LARGEST = 2**30  # bytes of a file that is read as a whole
DEEPEST = 50  # levels of JSON
DECODER = json.JSONDecoder(parse_constant=lambda name: None)  # null for NaN and infinities
BRACKET = re.compile(rb"[\[{]")
RUN_AGAIN = "Remove its folder to run it again"  # the remedy for a damaged file of a run
TEMPORARY = re.compile(r"\.(.+)\.(\d+)\.tmp")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Opens a new file that takes the place of `path` when the block ends; after an error, `path` is as it was."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    with suppress(OSError):  # makes the rename survive a power cut, where the system lets a folder be synced
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_file(path: Path, *pieces: bytes | memoryview) -> None:
    """Replaces `path` by the pieces, one after another, in a single step."""
    with replacing(path) as file:
        for piece in pieces:
            write_all(file.fileno(), piece)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Writes all of `data`: a single write may stop short, at 2 GB or just before the disk is full."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def remove_stale(folder: Path, name: str | None = None) -> None:
    """Removes the temporary files of processes that died while writing to this folder, or to one file of that name."""
    for entry in list(folder.iterdir()):
        match = TEMPORARY.fullmatch(entry.name)
        if match and name in (None, match[1]) and _is_dead(int(match[2])):
            entry.unlink(missing_ok=True)


def _is_dead(pid: int) -> bool:
    if pid == os.getpid():  # an earlier process had our number: in a container, every run may be number 7
        return True
    if os.name != "posix":  # elsewhere, asking whether a process lives would end it
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # it lives, and belongs to another user
    return False


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns an OSError about `path` into a RunError that says what happened and what to do."""
    try:
        yield
    except OSError as error:
        raise RunError(_sentence(path, error)) from error


def write(path: Path, *pieces: bytes | memoryview) -> None:
    """Does what `write_file` does, with errors that say what to do."""
    with explained(path), replacing(path) as file:
        for piece in pieces:
            write_all(file.fileno(), piece)


def read(path: Path) -> bytes | None:
    """The file's content, or None if there is no such file."""
    with explained(path):
        try:
            if path.stat().st_size > LARGEST:
                raise damaged(path, ValueError(f"it has more than {LARGEST:,} bytes"))
            return path.read_bytes()
        except FileNotFoundError:
            return None


def to_json(content: Mapping[str, Any], **options: Any) -> bytes:
    """Strict JSON: a number that is not finite becomes null. NumPy and torch scalars become numbers."""
    finite = parse_json(json.dumps(content, default=as_number).encode())
    return (json.dumps(finite, allow_nan=False, **options) + "\n").encode()


def parse_json(text: bytes) -> dict[str, Any]:
    """The JSON object in a text, with null for NaN and infinities; ValueError if it is something else."""
    try:
        content = DECODER.decode(text.decode("utf-8-sig"))
        too_deep = len(BRACKET.findall(text)) > DEEPEST and _depth(content) > DEEPEST
    except RecursionError:
        too_deep = True
    if too_deep:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    return content


def _depth(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, parts), default=0)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replaces a file with a JSON object; see `to_json`."""
    write(path, to_json(content, indent=2))


def read_json(path: Path, remedy: str = RUN_AGAIN) -> dict[str, Any] | None:
    """The JSON object in a file, or None if there is no such file. The error about a damaged one says the remedy."""
    data = read(path)
    try:
        return None if data is None else parse_json(data)
    except ValueError as error:
        raise damaged(path, error, remedy) from error


def damaged(path: Path, error: Exception, remedy: str = RUN_AGAIN) -> RunError:
    """The error about a file whose content makes no sense."""
    return RunError(f"{path} is damaged ({error}). {remedy}, or restore the file from a backup.")


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
            advice = f"Make sure that you may read and write in {path.parent}, or choose another folder."
            return f"{path} cannot be accessed ({error.strerror}). {advice}"
        case errno.ENOENT:
            advice = "If it was moved or removed, put it back; otherwise choose another folder."
            return f"{path.parent} is not there and cannot be made. {advice}"
        case errno.ENOTDIR | errno.EEXIST:
            return f"{path} needs a folder where there is a file. Move that file, or choose another folder."
        case errno.ENOLCK | errno.ENOSYS | errno.EOPNOTSUPP:
            problem = (
                f"{path} cannot be locked ({error.strerror}), and without a lock two processes could corrupt a run."
            )
            return f"{problem} Choose a folder for the runs on a file system that supports locks."
        case _:
            return f"{path} could not be read or written: {error.strerror or error}. Check the path and the disk."


def fingerprint(path: Path) -> str:
    """Returns a hash of a file's content, or of the names and sizes of the files in a folder."""
    if not path.is_dir():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    files = sorted(
        (each.relative_to(path).as_posix(), each.stat().st_size) for each in path.rglob("*") if each.is_file()
    )
    return hashlib.sha256(repr(files).encode()).hexdigest()[:16]
