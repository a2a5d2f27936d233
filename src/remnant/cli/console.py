"""What every command prints with, and how it tells what went wrong."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

out = Console()
err = Console(stderr=True)


@contextmanager
def friendly_errors() -> Iterator[None]:
    """Our own errors, and the system's about files, as one sentence on stderr and exit code 1; no traceback."""
    from remnant.data.errors import DataError
    from remnant.experiments.runs.files import RunError
    from remnant.experiments.settings.types import SettingsError

    try:
        yield
    except (DataError, RunError, SettingsError, OSError) as error:
        tell(str(error))
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        err.print("Interrupted.")
        raise typer.Exit(130) from None


def tell(trouble: str) -> None:
    """What went wrong, where the command goes on or ends."""
    err.print(f"[red]Error:[/red] {plain(trouble)}", soft_wrap=True, highlight=False)


def plain(text: str) -> str:
    """Square brackets in a message are text, not markup."""
    from rich.markup import escape

    return escape(text)
