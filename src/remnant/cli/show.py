"""`remnant show` and `remnant diff`: one run, and two runs side by side."""

from pathlib import Path
from typing import Annotated

from typer import Argument

from .app import app, print_rows, print_text

Run = Annotated[Path, Argument(help="A run folder, or a folder with one run in it.")]


@app.command()
def show(run: Run) -> None:
    """Show one run, and the command that makes it again.

    Prints its settings, environment, accuracies, curves, ranks and warnings.

    Example: remnant show runs/permuted-digits/gpm/1a2b3c4d/seed0
    """
    from remnant.report import open_run

    from .progress import print_accuracies

    found = open_run(run)
    record = found.record
    state = "finished" if record.result else "unfinished"
    print_text(f"{record.benchmark} · {record.method} · seed {record.seed} · {state}", style="bold")
    print_text(f"in {record.folder.path}\n", style="dim")
    print_rows("", found.settings(), ("setting", "value", "from"), lambda cell: "yellow" if cell == "changed" else "")
    print_text("")
    print_rows("", found.environment(), ("environment", "value"))
    if record.matrix is not None and record.learned:
        print_text("")
        print_accuracies(record.matrix, "Accuracy, %, after learning each task")
    sections = {"Results": found.results(), "Curves by epoch": found.curves(), "Directions added": found.ranks()}
    for title, rows in sections.items():
        if rows:
            print_text("")
            print_rows(title, rows, ("layer", "loss", "validation accuracy %"))
    for warning in found.warnings():
        print_text(f"\nWarning: {warning}", style="yellow")
    none = "No command repeats this run, because no recipe leads to its settings."
    print_text(f"\nRepeat it with: {found.command}" if found.command else f"\n{none}")


@app.command()
def diff(first: Run, second: Run) -> None:
    """Show what differs between two runs: settings, code and results.

    Example: remnant diff runs/permuted-digits/gpm/1a2b3c4d/seed0 results/permuted-digits/gpm/1a2b3c4d/seed0
    """
    from remnant.report import difference, matrix_difference, open_run

    a, b = open_run(first), open_run(second)
    for name, run in (("first", a), ("second", b)):
        print_text(f"{name}: {run.record.benchmark} · {run.record.method} · {run.record.folder.path}")
    for heading, rows in difference(a, b).items():
        print_text("")
        if rows:
            print_rows("", rows, (heading, "first", "second") if heading != "result" else ("result",))
        else:
            print_text(f"{heading}: no difference")
    print_text(f"\n{matrix_difference(a.record, b.record)}")
