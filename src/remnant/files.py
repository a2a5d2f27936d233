"""Atomic file replacement: a file is complete or not there at all."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

TEMPORARY = re.compile(r"\..+\.(\d+)\.tmp")


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


def remove_stale(folder: Path) -> None:
    """Removes the temporary files of processes that died while writing to this folder."""
    for entry in list(folder.iterdir()):
        match = TEMPORARY.fullmatch(entry.name)
        if match and _is_dead(int(match[1])):
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
