"""Commands about the paper's tables: reproduce them, and keep finished results."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from .app import app, err, print_error, print_rows, print_text
from .runs import Device, On, Parallel, Quiet, Root, Seeds, for_each, parse_seeds

if TYPE_CHECKING:
    from remnant.experiments.execute import Plan
    from remnant.experiments.paper import TimingJob


@app.command()
def reproduce(
    table: Annotated[
        str,
        Argument(
            help="table1a, table1b, table2, table3, single-epoch, class-incremental, related, successors, ablations, "
            "fair or all."
        ),
    ],
    methods: Annotated[str, Option(help="Only these methods, separated by commas.")] = "",
    benchmarks: Annotated[str, Option(help="Only these benchmarks, separated by commas.")] = "",
    seeds: Seeds = "5",
    device: Device = "auto",
    parallel: Parallel = 0,
    on: On = "here",
    runs: Root = Path("runs"),
    kept: Annotated[Path, Option("--results", help="Folder of finished results, which are not run again.")] = Path(
        "results"
    ),
    run_missing: Annotated[bool, Option("--run/--no-run", help="Run what is missing, or only print the table.")] = True,
    quiet: Quiet = False,
) -> None:
    """Reproduce a table of the paper. Runs what is missing, and prints our figures beside the paper's.

    Example: remnant reproduce table1a --methods gpm,ewc --no-run
    """
    from remnant.experiments.execute import Plan, run
    from remnant.experiments.paper import Reproduction, select_tables

    from .progress import show_progress

    def run_job(job: "Plan | TimingJob") -> None:
        if isinstance(job, Plan):
            title = f"{job.settings.benchmark} · {job.settings.method}"
            with show_progress(err, quiet=quiet, title=title) as watch:
                run(job, watch)
        else:
            job(lambda line: None if quiet else print_text(line))

    complete = True
    wanted = ([word.strip() for word in text.split(",") if word.strip()] for text in (methods, benchmarks))
    for chosen in select_tables(table, *wanted):
        reproduction = Reproduction(chosen, runs, kept)
        work, problems = reproduction.missing(parse_seeds(seeds), device, parallel, on)
        for problem in problems:
            print_error(problem)
        done = not run_missing or for_each(work, run_job)
        complete = complete and done and not problems
        print_rows(chosen.name, reproduction.rows(), ("benchmark", "method", "variant"))
    raise Exit(int(not complete))


@app.command()
def keep(
    runs: Root = Path("runs"),
    results: Annotated[Path, Argument(help="The folder to copy to.")] = Path("results"),
) -> None:
    """Copy finished results to another folder. Copies accuracies, settings and times, but no checkpoints.

    Example: remnant keep results
    """
    from remnant.experiments import paper

    message, problems = paper.keep(runs, results)
    for problem in problems:
        print_error(problem)
    print_text(message)
    raise Exit(int(bool(problems)))
