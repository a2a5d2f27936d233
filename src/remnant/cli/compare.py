"""Commands that compare runs: `compare` and `report`, and the table after several methods in one `remnant run`."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from remnant.errors import UserError

from .app import app, err, print_error, print_note, print_rows, print_text

if TYPE_CHECKING:
    from remnant.experiments.execute import Plan
    from remnant.report import Compared, Content


@app.command()
def compare(
    folders: Annotated[list[Path] | None, Argument(help="Folders that contain runs. Default: runs.")] = None,
    benchmark: Annotated[str | None, Option(help="Only this benchmark.")] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="Also write all formats and pictures to this folder.")
    ] = None,
    csv: Annotated[bool, Option("--csv", help="Print CSV.")] = False,
    markdown: Annotated[bool, Option("--markdown", help="Print Markdown.")] = False,
    latex: Annotated[bool, Option("--latex", help="Print LaTeX.")] = False,
    json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare methods over their seeds. Marks the best, and all that cannot be told apart from it.

    Example: remnant compare runs --benchmark permuted-digits -o comparison
    """
    from remnant.report import compare_runs, comparison_text, naming_missing_packages, save_comparison

    flags = {"csv": csv, "markdown": markdown, "latex": latex, "json": json}
    chosen = [form for form, wanted in flags.items() if wanted]
    if len(chosen) > 1:
        raise UserError(f"--{' --'.join(chosen)}: choose one. With -o, all formats are written.")
    compared = compare_runs(folders or [Path("runs")], benchmark)
    print_left_out(compared)
    with naming_missing_packages("This output of remnant compare"):
        if chosen:
            print_text(comparison_text(compared, chosen[0]), end="")
        else:
            print_comparison(compared)
        for path in save_comparison(compared, output) if output else ():
            print_text(f"Wrote {path}", err)


@app.command()
def report(
    folders: Annotated[
        list[Path] | None, Argument(help="Folders that contain runs. Default: runs if it exists, otherwise results.")
    ] = None,
    output: Annotated[Path, Option("--output", "-o", help="The folder to write the report to.")] = Path("report"),
    docs: Annotated[Path | None, Option(help="Also write results.md and its figures to this folder.")] = None,
    watch: Annotated[
        bool, Option("--watch", help="Serve the page on this machine and update it while runs write.")
    ] = False,
    port: Annotated[
        int, Option(help="The port for --watch on 127.0.0.1. 0 picks a free one.", min=0, max=65535)
    ] = 8484,
) -> None:
    """Write a page with all runs, tables and figures. Each is also a file: SVG, PDF, PNG, Markdown, CSV, LaTeX.

    Example: remnant report runs -o report
    """
    from remnant.report import naming_missing_packages, write_report

    roots = folders or [Path("runs") if Path("runs").is_dir() else Path("results")]
    if watch and docs:
        raise UserError("--watch and --docs cannot be combined. Leave one of them out.")
    if not watch:
        print_report(write_report(roots, output, docs), output)
        return

    def started(address: str, content: "Content") -> None:
        print_report(content, output)
        print_text(f"Serving {address} on this machine. Press Ctrl-C to stop.")

    with suppress(KeyboardInterrupt), naming_missing_packages("The report"):
        from remnant.report import watch_report

        watch_report(roots, output, port, started, print_error)
    print_text("Stopped. The report is kept.")


def print_report(content: "Content", output: Path) -> None:
    """Names damaged runs, and counts what the report shows."""
    reading, unfinished = content.collection.reading, len(content.unfinished)
    for path, problem in reading.damaged:
        print_note(f"{path}: {problem}", "Left out")
    finished = len(reading.runs) - unfinished
    runs = f"{finished} finished run{'s' * (finished != 1)}" + (f", {unfinished} unfinished" if unfinished else "")
    print_text(f"{output / 'index.html'}: {runs}, {len(content.grids)} tables, {len(content.drawings)} figures")


def print_left_out(compared: "Compared") -> None:
    """Names what the table leaves out, on standard error."""
    reading = compared.reading
    for path, problem in reading.damaged:
        print_note(f"{path}: {problem}", "Left out")
    for remark in reading.remarks:
        print_note(remark)
    if unfinished := sum(run.result is None for run in reading.runs):
        runs = f"{unfinished} unfinished run{'s' * (unfinished > 1)}"
        print_note(f"{runs}; remnant resume continues {'them' if unfinished > 1 else 'it'}.", "Left out")


def print_comparison(compared: "Compared") -> None:
    from remnant.report import comparison_rows

    for index, comparison in enumerate(compared.comparisons):
        title, rows, remarks = comparison_rows(comparison)
        print_rows(f"\n{title}" if index else title, rows, ("method", "settings"))
        for remark in remarks:
            print_text(remark, style="dim")


def run_several(plans: Sequence["Plan"], quiet: bool, log: str) -> bool:
    """Runs the plans of several methods, even if one fails, and prints one table. Returns whether all succeeded."""
    from remnant.experiments.execute import finished_runs
    from remnant.report import compare_runs

    from .progress import run_plans

    named = {plan.settings.method: plan for plan in plans}
    complete = run_plans(plans[0].settings.benchmark, named, quiet, log, results=False)
    if finished := [folder.path for plan in plans for folder in finished_runs(plan)]:
        print_comparison(compare_runs(finished))
    return complete
