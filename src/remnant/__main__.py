"""`remnant` and `python -m remnant`."""

import io
import signal
import sys
from typing import Any


class Ended(KeyboardInterrupt):
    """The process was asked to end by a signal, whose number is the argument. Handled like Ctrl-C."""


def end(number: int, frame: Any) -> None:
    """Ends the command like Ctrl-C. A plain KeyboardInterrupt in C code would make Python exit with Ctrl-C's code."""
    raise Ended(number)


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
    for name in ("SIGTERM", "SIGHUP"):  # end like Ctrl-C, unless nohup asked to ignore it
        if signal.getsignal(number := getattr(signal, name, signal.SIGINT)) is signal.SIG_DFL:
            signal.signal(number, end)
    if "" in sys.argv:  # as a path it would mean this folder
        sys.exit("Error: An argument is empty. Is it an unset variable?")
    app()


if __name__ == "__main__":
    main()
