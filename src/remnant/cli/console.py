"""Standard output, standard error, and errors as one sentence instead of a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console

from remnant.errors import UserError

out = Console()
err = Console(stderr=True)


@contextmanager
def friendly_errors() -> Iterator[None]:
    """Prints errors that the user can fix as one sentence, and exits with code 1 (with 130 after Ctrl-C)."""
    try:
        yield
    except (UserError, OSError) as error:
        print_error(str(error))
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        err.print("Interrupted.")
        raise typer.Exit(130) from None


def print_text(text: str, console: Console = out, **options: Any) -> None:
    """Prints text as it is: no markup, no colours for numbers, no line breaks."""
    console.print(text, soft_wrap=True, highlight=False, markup=False, **options)


def print_error(text: str, label: str = "Error", colour: str = "red") -> None:
    """Prints a coloured label and a sentence to standard error."""
    err.print(f"{label}:", style=colour, end=" ")
    print_text(text, err)
