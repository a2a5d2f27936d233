"""`remnant` and `python -m remnant`."""

import io
import sys


def main() -> None:
    """Runs the command line, or says what to install for it."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        sys.exit(f"The command line needs {error.name}, which is not installed: pip install 'remnant[cli]'.")
    from remnant.cli import app

    for stream in (sys.stdout, sys.stderr):  # where there is no ± or …, a ? will do: no run shall end over it
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    app()


if __name__ == "__main__":
    main()
