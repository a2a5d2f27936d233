"""The data sets on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from .console import err, friendly_errors, out, plain

data = typer.Typer(help="The data sets on this machine: list, download, add.", no_args_is_help=True)


@data.command("status")
def data_status() -> None:
    """List every data set: ready, missing or damaged."""
    from rich.table import Table

    with friendly_errors():
        from remnant.data import data_root, status

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
                err.print(f"[red]{row.name}:[/red] {plain(row.problem)}", soft_wrap=True, highlight=False)
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

    with friendly_errors():
        from remnant.data import fetch

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
    with friendly_errors():
        from remnant.data import add

        made = add(name, path)
        out.print(f"{name} is ready: {made}", soft_wrap=True, highlight=False)
