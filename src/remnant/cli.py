"""The command line: parses and prints, decides nothing. Rooms are imported inside the commands, so that --help is quick."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(
    name="remnant",
    help="Learn one task after another without forgetting.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data = typer.Typer(help="The data sets on this machine: list, download, add.", no_args_is_help=True)
app.add_typer(data, name="data")

out = Console()
err = Console(stderr=True)


@app.callback()
def _root() -> None:
    """Keeps `remnant` a group of commands, however many there are."""


@contextmanager
def told_plainly() -> Iterator[None]:
    """Our own errors, and the system's about files, as one sentence on stderr and exit code 1; no traceback."""
    from .data.errors import DataError

    try:
        yield
    except (DataError, OSError) as error:
        err.print(f"[red]Error:[/red] {_plain(str(error))}", soft_wrap=True, highlight=False)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        err.print("Interrupted.")
        raise typer.Exit(130) from None


def _plain(text: str) -> str:
    """Square brackets in a message are text, not markup."""
    from rich.markup import escape

    return escape(text)


# --- data ---------------------------------------------------------------------------------------------------------


@data.command("status")
def data_status() -> None:
    """List every data set: ready, missing or damaged."""
    from rich.table import Table

    with told_plainly():
        from .data import data_root, status

        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("set", "state", "train", "test", "size", "what"):
            table.add_column(heading, justify="right" if heading in ("train", "test", "size") else "left")
        rows = status()
        for row in rows:
            state = (
                "[green]ready[/green]" if row.ready else "[dim]missing[/dim]" if not row.bytes else "[red]damaged[/red]"
            )
            counts = (f"{row.train:,}", f"{row.test:,}") if row.ready else ("", "")
            size = f"{row.bytes / 1e6:,.0f} MB" if row.bytes else ""
            table.add_row(row.name, state, *counts, size, row.title)
        out.print(f"Prepared sets in {data_root()}", soft_wrap=True, highlight=False)
        out.print(table)
        for row in rows:
            if not row.ready and row.bytes:
                err.print(f"[red]{row.name}:[/red] {_plain(row.problem)}", soft_wrap=True, highlight=False)
        if any(not row.ready for row in rows):
            out.print("Get one: remnant data fetch NAME, or remnant data add NAME PATH with files you have.")


@data.command("fetch")
def data_fetch(name: Annotated[str, typer.Argument(help="A set, as `remnant data status` lists them.")]) -> None:
    """Download a set from its usual address, check it and prepare it. Interrupted, it resumes."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    with told_plainly():
        from .data import fetch

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, TimeRemainingColumn(), console=err, transient=True) as progress:
            bars: dict[str, TaskID] = {}

            def report(file: str, done: int, total: int | None) -> None:
                if file not in bars:
                    bars[file] = progress.add_task(file)
                progress.update(bars[file], completed=done, total=total)

            path = fetch(name, report)
        out.print(f"{name} is ready: {path}", soft_wrap=True, highlight=False)


@data.command("add")
def data_add(
    name: Annotated[str, typer.Argument(help="A set, as `remnant data status` lists them.")],
    path: Annotated[Path, typer.Argument(help="A folder or archive with the set's original files.")],
) -> None:
    """Prepare a set from original files you already have."""
    with told_plainly():
        from .data import add

        made = add(name, path)
        out.print(f"{name} is ready: {made}", soft_wrap=True, highlight=False)
