"""One writer per run: a lock that the kernel drops with its process, however that ends."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .files import RunError, explained, write_all

try:
    import fcntl
except ImportError:  # Windows has no flock: two processes on one run are not kept apart there
    fcntl = None  # type: ignore[assignment]


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Holds the lock file `path` while the block runs; refuses at once where another process (or this one) has it.

    The file stays behind: removing it would let two processes lock two files of one name.
    """
    with explained(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _take(descriptor, path)
        # Who holds it is a courtesy to the one refused, which a full disk may withhold.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            write_all(descriptor, f"{os.getpid()} {socket.gethostname()}".encode())
        try:
            yield
        finally:
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunError(
            f"{path.parent} is being written by {_holder(descriptor)}. Wait until that has ended, or end it, "
            "then run this again."
        ) from None
    except OSError as error:
        raise RunError(
            f"{path} cannot be locked ({error.strerror}), and without a lock two processes could spoil one run. "
            "Choose a folder for the runs on a file system with locks."
        ) from error


def _holder(descriptor: int) -> str:
    pid, _, host = os.read(descriptor, 300).decode(errors="replace").partition(" ")
    if not pid.isdigit():
        return "another process"
    if host != socket.gethostname():
        return f"process {pid} on {host}"
    return f"process {pid}" + (" (this one)" if int(pid) == os.getpid() else "")
