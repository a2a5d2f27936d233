"""`remnant` and `python -m remnant`."""

import io
import os
import signal
import sys
import threading
from itertools import count
from types import FrameType

IMPORTS = "<frozen importlib._bootstrap>"
_postponed = count()


class Ended(KeyboardInterrupt):
    """The process was asked to end by a signal, whose number is the argument. Handled like Ctrl-C."""


def end(number: int, frame: FrameType | None) -> None:
    """Ends the command, at most 5 s later if an exception could be lost now."""
    if os.name == "posix" and _is_busy(frame) and next(_postponed) < 50:
        again = threading.Timer(0.1, os.kill, [os.getpid(), number])
        again.daemon = True
        again.start()
    else:
        raise Ended(number)


def _is_busy(frame: FrameType | None) -> bool:
    """Whether a process is being started (with SIGINT held), or an import runs, whose C code may drop an exception."""
    if signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        return True
    while frame and frame.f_code.co_filename != IMPORTS:
        frame = frame.f_back
    return frame is not None


def main() -> None:
    """Runs the command line, or names the package that is missing."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        sys.exit(
            f"The command line needs {error.name}, which is not installed: pip install typer rich scikit-learn filelock."
        )
    from remnant.cli import app

    for stream in (sys.stdout, sys.stderr):  # print ? where a terminal has no ±, and never fail
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # alike, unless nohup asked to ignore one
        # Python's own handler would raise a plain KeyboardInterrupt, after which Python may set the exit code itself.
        number = getattr(signal, name, signal.SIGINT)
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, end)
    if "" in sys.argv:  # as a path it would mean this folder
        sys.exit("Error: An argument is empty. Is it an unset variable?")
    app()


if __name__ == "__main__":
    main()
