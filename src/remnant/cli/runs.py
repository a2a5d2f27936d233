"""Commands that start runs and read their results."""

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from .app import app
from .console import err, friendly_errors, out, print_error, print_text

if TYPE_CHECKING:
    from remnant.experiments.execute import Plan
    from remnant.experiments.paper import TimingJob
    from remnant.experiments.runs import RunFolder

Work = TypeVar("Work")

Benchmark = Annotated[str, typer.Argument(help="A benchmark (remnant list benchmarks), or path/to/file.py:name.")]
Method = Annotated[str, typer.Argument(help="A method (remnant list methods), or path/to/file.py:Name.")]
Root = Annotated[Path, typer.Option("--runs", help="The folder of runs.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting: lr=0.1, threshold.start=0.95, network.name=file.py:Net."),
]
Seeds = Annotated[str, typer.Option(help="How many seeds (5: seeds 0 to 4), or which (1,3; a single one: 7,).")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Parallel = Annotated[int, typer.Option(min=0, help="Seeds at a time; 0: all on a GPU, one per core on a CPU.")]
Protocol = Annotated[str, typer.Option(help="paper: as in the paper's tables; sane: frozen statistics, Eq. 5.")]
Deterministic = Annotated[bool, typer.Option("--deterministic", help="Bit-equal results on the same machine.")]
Tf32 = Annotated[bool, typer.Option(help="Use TensorFloat-32 on GPUs.")]
Steps = Annotated[str, typer.Option(help="auto: the fastest way; captured: CUDA graphs; eager: one by one.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")]
Every = Annotated[
    int, typer.Option("--checkpoint-every", min=0, help="Epochs between checkpoints (0: only after tasks).")
]
AS_BEFORE = "Unless given, as when the run was started."


@app.command()
def run(
    benchmark: Benchmark,
    method: Method,
    seeds: Seeds = "1",
    set_: Set = None,
    protocol: Protocol = "paper",
    device: Device = "auto",
    parallel: Parallel = 0,
    deterministic: Deterministic = False,
    tf32: Tf32 = True,
    steps: Steps = "auto",
    checkpoint_every: Every = 20,
    runs: Root = Path("runs"),
    tensorboard: Annotated[Path | None, typer.Option(help="Also write TensorBoard logs to this folder.")] = None,
    quiet: Quiet = False,
) -> None:
    """Train a method on a benchmark. Finished seeds are not run again, interrupted ones continue.

    Example: remnant run permuted-digits gpm --seeds 5 --set lr=0.05
    """
    from remnant.experiments.execute import Plan, parse_seeds
    from remnant.experiments.settings import resolve

    settings = resolve(benchmark, method, set_ or (), protocol)
    how = (device, parallel, deterministic, tf32, steps, checkpoint_every)
    _run_and_print(Plan(settings, parse_seeds(seeds), runs, *how), quiet, tensorboard)


@app.command()
def resume(
    path: Annotated[Path, typer.Argument(help="A run folder, or a folder that holds several.")],
    device: Device = "auto",
    parallel: Parallel = 0,
    deterministic: Annotated[bool | None, typer.Option(help=AS_BEFORE)] = None,
    tf32: Annotated[bool | None, typer.Option(help=AS_BEFORE)] = None,
    checkpoint_every: Annotated[int | None, typer.Option(min=0, help=AS_BEFORE)] = None,
    quiet: Quiet = False,
) -> None:
    """Continue interrupted runs in the way they were started.

    Example: remnant resume runs
    """
    from remnant.experiments.execute import unfinished

    options = {"deterministic": deterministic, "tf32": tf32, "checkpoint_every": checkpoint_every}
    plans, problems = unfinished(path, device, parallel, **options)
    _print_problems(problems)
    if not plans and not problems:
        print_text(f"Nothing to resume in {path}: every run is finished.")
    if not _for_each(plans, lambda plan: _run_and_print(plan, quiet)) or problems:
        raise typer.Exit(1)


@app.command()
def sweep(
    benchmark: Benchmark,
    method: Method,
    over: Annotated[list[str], typer.Option(help="The setting and its values: threshold.start=0.90,0.95,0.99.")],
    seeds: Seeds = "1",
    set_: Set = None,
    protocol: Protocol = "paper",
    device: Device = "auto",
    parallel: Parallel = 0,
    deterministic: Deterministic = False,
    tf32: Tf32 = True,
    steps: Steps = "auto",
    checkpoint_every: Every = 20,
    runs: Root = Path("runs"),
    quiet: Quiet = False,
) -> None:
    """Run a method for several values of a setting. Prints ACC, BWT and memory for each.

    GPM also records the drift of each layer, which remnant report shows.

    Example: remnant sweep permuted-digits gpm --over threshold.start=0.90,0.95,0.99
    """
    from remnant.experiments.execute import Plan, Sweep, parse_seeds, without_drift

    from .tables import print_rows

    chosen = Sweep.of(benchmark, method, over, set_ or (), protocol)
    how = (device, parallel, deterministic, tf32, steps, checkpoint_every)
    plans = chosen.plans(Plan(chosen.settings, parse_seeds(seeds), runs, *how))

    def run_value(plan: "Plan") -> None:
        if not quiet:
            print_text(chosen.label(plan), err, style="bold")
        _run(plan, quiet)

    complete = _for_each(plans, run_value)
    print_rows(out, f"{benchmark} · {method}", chosen.rows(plans))
    for sentence in without_drift(plans):
        print_error(sentence, "Note", "yellow")
    if not complete:
        raise typer.Exit(1)


@app.command()
def reproduce(
    table: Annotated[
        str, typer.Argument(help="table1a, table1b, table2, table3, single-epoch, class-incremental or all.")
    ],
    methods: Annotated[str, typer.Option(help="Only these methods, separated by commas.")] = "",
    benchmarks: Annotated[str, typer.Option(help="Only these benchmarks, separated by commas.")] = "",
    seeds: Seeds = "5",
    device: Device = "auto",
    parallel: Parallel = 0,
    runs: Root = Path("runs"),
    kept: Annotated[Path, typer.Option("--results", help="The folder of finished results.")] = Path("results"),
    run_missing: Annotated[bool, typer.Option("--run/--no-run", help="Run what is missing, or only print.")] = True,
    quiet: Quiet = False,
) -> None:
    """Reproduce a table of the paper. Runs what is missing, and prints our figures beside the paper's.

    Example: remnant reproduce table1a --methods gpm,ewc --no-run
    """
    from remnant.experiments.execute import parse_seeds
    from remnant.experiments.paper import Reproduction, select_tables

    from .tables import print_rows

    complete = True
    for chosen in select_tables(table, _words(methods), _words(benchmarks)):
        reproduction = Reproduction(chosen, runs, kept)
        work, problems = reproduction.missing(parse_seeds(seeds), device, parallel)
        _print_problems(problems)
        done = not run_missing or _for_each(work, lambda job: _run_job(job, quiet))
        complete = complete and done and not problems
        print_rows(out, chosen.name, reproduction.rows(), ("benchmark", "method", "variant"))
    if not complete:
        raise typer.Exit(1)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


@app.command()
def keep(
    runs: Root = Path("runs"),
    results: Annotated[Path, typer.Argument(help="The folder to copy to.")] = Path("results"),
) -> None:
    """Copy finished results to another folder. Copies accuracies, settings and times, but no checkpoints.

    Example: remnant keep results
    """
    from remnant.experiments import paper

    message, problems = paper.keep(runs, results)
    _print_problems(problems)
    print_text(message)
    if problems:
        raise typer.Exit(1)


@app.command()
def report(
    folders: Annotated[list[Path] | None, typer.Argument(help="Folders with run folders in them.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder of the report.")] = Path("report"),
    docs: Annotated[Path | None, typer.Option(help="Also write results.md and its figures to this folder.")] = None,
) -> None:
    """Write a page with all tables and figures. Each is also a file: SVG, PNG, Markdown, CSV, LaTeX.

    Example: remnant report results runs -o report
    """
    from remnant.report import write_report

    written = write_report(folders or [Path("results")], output, docs)
    for line in written.damaged:
        print_error(line, "Left out", "yellow")
    unfinished = f", {written.unfinished} unfinished" if written.unfinished else ""
    counts = f"{written.runs} finished run(s){unfinished}, {written.tables} tables, {written.figures} figures"
    print_text(f"{written.page}: {counts}")


@app.command()
def demo() -> None:
    """Compare GPM with fine-tuning on small digits. Takes under a minute on two cores.

    Example: remnant demo
    """
    from .demo import run_demo

    run_demo(out, err)


def _run(plan: "Plan", quiet: bool, tensorboard: Path | None = None) -> list["RunFolder"]:
    from remnant.experiments.execute import run

    from .progress import show_progress

    title = f"{plan.settings.benchmark} · {plan.settings.method}"
    with show_progress(err, quiet=quiet, title=title, tensorboard=tensorboard) as watch:
        return run(plan, watch)


def _run_and_print(plan: "Plan", quiet: bool, tensorboard: Path | None = None) -> None:
    from .tables import print_results

    print_results(out, plan.settings, _run(plan, quiet, tensorboard), matrix=not quiet)


def _run_job(job: "Plan | TimingJob", quiet: bool) -> None:
    from remnant.experiments.execute import Plan

    if isinstance(job, Plan):
        _run(job, quiet)
    else:
        job(lambda line: None if quiet else print_text(line))


def _for_each(work: Sequence[Work], do: Callable[[Work], object]) -> bool:
    """Does each piece of work, whether or not an earlier one failed. Returns whether all succeeded."""
    succeeded = True
    for piece in work:
        try:
            with friendly_errors():
                do(piece)
        except typer.Exit as exit_:
            if exit_.exit_code != 1:
                raise
            succeeded = False
        except Exception:  # an error in the code, most likely in the user's own method: its author needs the traceback
            traceback.print_exc()
            succeeded = False
    return succeeded


def _print_problems(problems: Sequence[str]) -> None:
    for problem in problems:
        print_error(problem)
