"""The `remnant` command and its console. Other modules of this room add their commands."""

import re
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from remnant import __version__
from remnant.errors import UserError, own_line

UsageError: Any = typer.BadParameter.__base__  # of click, or of the copy of click that newer releases of typer have
out = Console()
err = Console(stderr=True)


def print_text(text: str | Text, console: Console = out, **options: Any) -> None:
    """Prints text as it is, without markup, emoji, colours for numbers and line breaks."""
    console.print(text, soft_wrap=True, highlight=False, markup=False, emoji=False, **options)


def print_error(text: str, label: str = "Error", colour: str = "red") -> None:
    """Prints a coloured label and a sentence to standard error."""
    err.print(f"{label}:", style=colour, end=" ")
    print_text(_shortened(text), err)


def print_note(text: str, label: str = "Note") -> None:
    print_error(text, label, "yellow")


def print_rows(
    title: str,
    rows: Sequence[Mapping[str, str]],
    text: Sequence[str] = (),
    style: Callable[[str], str] = lambda cell: "",
) -> None:
    """Prints rows of cells by heading, without empty columns. `text` names the columns to align to the left.

    A heading such as `acc (paper)` takes two lines, so that its column stays as narrow as its numbers. `style` gives the
    colour of a cell. On a narrow terminal text wraps, but numbers and the first column are never cut short.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    names = [name for name in (rows[0] if rows else ()) if any(row[name] for row in rows)]
    for name in names:
        heading = name.replace(" (", "\n(")
        whole = max(cell_len(cell) for cell in (*heading.splitlines(), *(row[name] for row in rows)))
        wraps = name in text and name != names[0]
        table.add_column(heading, justify="left" if name in text else "right", min_width=None if wraps else whole)
    for row in rows:
        table.add_row(*(Text(row[name], style(row[name])) for name in names))
    least, most = table.__rich_measure__(out, out.options.update(max_width=10_000))
    width = out.width if least <= out.width else most
    if title:
        print_text(title, style="italic")
    Console(file=out.file, width=width, force_terminal=out.is_terminal, highlight=False).print(table)


def print_failure(error: Exception, name: str = "") -> None:
    """Prints any error of the work called `name`, so that other work can continue."""
    if isinstance(error, UserError | OSError):
        line = "" if isinstance(error, UserError) else own_line(error)
        print_error(f"{name}: {error}{line}" if name else f"{error}{line}")
    else:  # a bug, most likely in the user's own method: its author needs the traceback
        traceback.print_exception(error)


def _shortened(text: str) -> str:
    """Cuts words of hundreds of letters short."""
    return re.sub(r"(\S{150})\S{50,}", r"\1…", text)


class FriendlyGroup(TyperGroup):
    """Prints errors that the user can fix as one sentence, and exits with code 1 (after a signal, with 128 + its number)."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (UserError, OSError) as error:
            print_failure(error)
            raise typer.Exit(1) from None
        except UsageError as error:
            error.message = _shortened(error.message)
            raise
        except KeyboardInterrupt as interrupt:
            trains = ctx.invoked_subcommand in ("run", "resume", "sweep", "reproduce")
            kept = " Finished tasks are kept. Run the same command again to continue." if trains else ""
            print_text(f"Interrupted.{kept}", err)
            raise typer.Exit(128 + next(iter(interrupt.args), signal.SIGINT)) from None


app = typer.Typer(
    name="remnant", cls=FriendlyGroup, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
)


@app.callback(invoke_without_command=True)
def remnant(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Learn one task after another without forgetting.

    Start with: remnant demo
    """
    if version:
        print_text(f"remnant {__version__}")
        raise typer.Exit
