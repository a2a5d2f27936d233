"""`remnant data`: the datasets on this machine."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Typer

from .app import err, print_error, print_rows, print_text

data = Typer(help="List, download and add datasets.", no_args_is_help=True)

Name = Annotated[str, Argument(help="A dataset (remnant data status lists them).")]


@data.command("status")
def data_status() -> None:
    """List all datasets, and whether they are ready, missing or damaged.

    Example: remnant data status
    """
    from remnant.data import data_root, status

    found = status()
    rows = []
    for row in found:
        counts = {part: f"{getattr(row, part):,}" if row.ready else "" for part in ("train", "test")}
        size = f"{row.bytes / 1e6:,.0f} MB" if row.bytes else ""
        rows.append({"dataset": row.name, "state": row.state, **counts, "size": size, "title": row.title})
    print_text(f"Prepared datasets in {data_root()}")
    colours = {"ready": "green", "damaged": "red", "missing": "dim"}
    print_rows("", rows, ("dataset", "state", "title"), lambda text: colours.get(text, ""))
    for row in found:
        if row.state == "damaged":
            print_error(row.problem, row.name)
    if not all(row.ready for row in found):
        print_text("To get one: remnant data fetch NAME, or remnant data add NAME PATH if you have its files.")


@data.command("fetch")
def data_fetch(name: Name) -> None:
    """Download a dataset, check it and prepare it. An interrupted download continues.

    Example: remnant data fetch mnist
    """
    from rich import progress

    from remnant.data import fetch

    columns = (*progress.Progress.get_default_columns(), progress.DownloadColumn(), progress.TransferSpeedColumn())
    with progress.Progress(*columns, console=err, transient=True) as display:
        bars: dict[str, progress.TaskID] = {}

        def report(file: str, done: int, total: int | None) -> None:
            if file not in bars:
                bars[file] = display.add_task(file)
            display.update(bars[file], completed=done, total=total)

        path = fetch(name, report, lambda note: print_text(note, err))
    print_text(f"{name} is ready: {path}")


@data.command("add")
def data_add(
    name: Name, path: Annotated[Path, Argument(help="A folder or archive with the dataset's original files.")]
) -> None:
    """Prepare a dataset from original files that you already have.

    Example: remnant data add cifar100 ~/downloads/cifar-100-python.tar.gz
    """
    from remnant.data import add

    print_text(f"{name} is ready: {add(name, path)}")
