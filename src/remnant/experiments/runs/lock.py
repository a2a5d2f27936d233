"""One writer per run: a lock that the operating system drops when its process ends, however it ends."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from .files import RunError, explained

LOCK = ".lock"


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Holds the lock of a run folder. Refuses at once if another process, or this one, holds it already."""
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
