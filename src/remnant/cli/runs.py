"""Commands that make runs and read them."""

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from .app import app
from .console import err, friendly_errors, out, plain, tell

if TYPE_CHECKING:
    from remnant.experiments.execute.plan import Plan
    from remnant.experiments.paper.reproduce import Choice
    from remnant.experiments.runs.folder import RunFolder

Part = TypeVar("Part")

Benchmark = Annotated[str, typer.Argument(help="A benchmark (remnant list benchmarks), or path/to/file.py:name.")]
Method = Annotated[str, typer.Argument(help="A method (remnant list methods).")]
Root = Annotated[Path, typer.Option("--runs", help="Where run folders are.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="key=value: lr=0.1, threshold.start=0.95, training.epochs=1.")
]
Seeds = Annotated[str, typer.Option(help="How many seeds (5: seeds 0 to 4), or which (1,3; one: 7,).")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Parallel = Annotated[int, typer.Option(min=0, help="Seeds at a time; 0: all on a GPU, one a core on a CPU.")]
Protocol = Annotated[str, typer.Option(help="paper: as the tables were made; sane: frozen statistics, Eq. 5.")]
Deterministic = Annotated[bool, typer.Option("--deterministic", help="Bit-equal results on the same machine.")]
Tf32 = Annotated[bool, typer.Option(help="TensorFloat-32 on GPUs.")]
Steps = Annotated[str, typer.Option(help="auto: the fastest way there is; captured: CUDA graphs; eager: one by one.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only the result.")]
Every = Annotated[
    int,
    typer.Option(
        "--checkpoint-every", min=0, help="Epochs between checkpoints, one a minute at most; 0: only after tasks."
    ),
]


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
    tensorboard: Annotated[Path | None, typer.Option(help="Also write TensorBoard logs here.")] = None,
    quiet: Quiet = False,
) -> None:
    """Train a method on a benchmark; what is finished already is not run again, what was cut off goes on."""
    with friendly_errors():
        from remnant.experiments.execute.plan import Plan, parse_seeds
        from remnant.experiments.settings.resolve import resolve

        settings = resolve(benchmark, method, set_ or (), protocol)
        plan = Plan(settings, parse_seeds(seeds), runs, device, parallel, deterministic, tf32, steps, checkpoint_every)
        _execute(plan, quiet, tensorboard)


@app.command()
def resume(
    path: Annotated[Path, typer.Argument(help="A run's folder, or one that holds several.")],
    device: Device = "auto",
    parallel: Parallel = 0,
    deterministic: Annotated[bool | None, typer.Option(help="As before, unless given.")] = None,
    tf32: Annotated[bool | None, typer.Option(help="As before, unless given.")] = None,
    checkpoint_every: Annotated[int | None, typer.Option(min=0, help="As before, unless given.")] = None,
    quiet: Quiet = False,
) -> None:
    """Go on with runs that were cut off, in the way they were run."""
    with friendly_errors():
        from remnant.experiments.execute.resume import unfinished

        plans, troubles = unfinished(
            path, device, parallel, deterministic=deterministic, tf32=tf32, checkpoint_every=checkpoint_every
        )
        for trouble in troubles:
            tell(trouble)
        if not plans and not troubles:
            words = f"Nothing to resume in {path}: every run there is finished."
            out.print(words, soft_wrap=True, highlight=False, markup=False)
    if not _each(plans, lambda plan: _execute(plan, quiet, None)) or troubles:
        raise typer.Exit(1)


@app.command()
def sweep(
    benchmark: Benchmark,
    method: Method,
    over: Annotated[list[str], typer.Option(help="key=value,value,…: threshold.start=0.90,0.95,0.97,0.99.")],
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
    """Run a method once for each value of a setting, and print ACC, BWT and memory by value; GPM's drift is recorded."""
    with friendly_errors():
        from remnant.experiments.execute.plan import Plan, parse_seeds
        from remnant.experiments.execute.sweep import Sweep, without_drift

        from . import tables as show

        chosen = Sweep.of(benchmark, method, over, set_ or (), protocol)
        how = (device, parallel, deterministic, tf32, steps, checkpoint_every)
        plans = chosen.plans(Plan(chosen.settings, parse_seeds(seeds), runs, *how))

    def run_value(plan: "Plan") -> None:
        if not quiet:
            err.print(chosen.label(plan), style="bold", highlight=False, soft_wrap=True, markup=False)
        _run(plan, quiet)

    well = _each(plans, run_value)
    with friendly_errors():
        show.table(out, f"{benchmark} · {method}", chosen.rows(plans))
        for sentence in without_drift(plans):
            err.print(f"[yellow]Note:[/yellow] {plain(sentence)}", soft_wrap=True, highlight=False)
    if not well:
        raise typer.Exit(1)


def _each(parts: Sequence[Part], do: Callable[[Part], object]) -> bool:
    """One after another. Where one fails, that is said and the others go on; False in the end."""
    well = True
    for part in parts:
        try:
            with friendly_errors():
                do(part)
        except typer.Exit as ended:
            if ended.exit_code != 1:
                raise
            well = False
        except Exception:  # a mistake in the code, a method's most likely: whoever wrote it wants to see all of it
            traceback.print_exc()
            well = False
    return well


def _execute(plan: "Plan", quiet: bool, tensorboard: Path | None) -> None:
    from . import tables as show

    show.results(out, plan.settings, _run(plan, quiet, tensorboard), matrix=not quiet)


def _run(plan: "Plan", quiet: bool, tensorboard: Path | None = None) -> list["RunFolder"]:
    from remnant.experiments.execute.plan import execute

    from .progress import watching

    title = f"{plan.settings.benchmark} · {plan.settings.method}"
    with watching(err, quiet=quiet, title=title, tensorboard=tensorboard) as watch:
        return execute(plan, watch)


@app.command()
def reproduce(
    table: Annotated[str, typer.Argument(help="table1a, table1b, table2, table3, single-epoch or class-incremental.")],
    methods: Annotated[str, typer.Option(help="Only these methods, with commas between.")] = "",
    benchmarks: Annotated[str, typer.Option(help="Only these benchmarks, with commas between.")] = "",
    seeds: Seeds = "5",
    device: Device = "auto",
    parallel: Parallel = 0,
    runs: Root = Path("runs"),
    kept: Annotated[Path, typer.Option("--results", help="Finished results, used where there are any.")] = Path(
        "results"
    ),
    run_missing: Annotated[bool, typer.Option("--run/--no-run", help="Run what is missing, or only print.")] = True,
    quiet: Quiet = False,
) -> None:
    """Run what is missing of a table of the paper, and print ours beside theirs."""
    with friendly_errors():
        from remnant.experiments.execute.plan import parse_seeds
        from remnant.experiments.paper import reproduce as reproduction
        from remnant.experiments.paper import times

        from . import tables as show

        chosen = reproduction.Choice(table, _words(methods), _words(benchmarks))
        if table == times.TABLE:
            well = not run_missing or _time(chosen, device, runs, quiet)
            rows = times.rows_of(chosen.load().rows, [runs, kept])
        else:
            wanted = parse_seeds(seeds)
            known, troubles = reproduction.finished([kept, runs])
            for trouble in troubles:
                tell(trouble)
            well = not troubles
            if run_missing:
                plans = reproduction.missing(chosen, wanted, known, device, parallel, runs)
                well = _each(plans, lambda plan: _run(plan, quiet)) and well
                known, _ = reproduction.finished([kept, runs])
            rows = reproduction.rows(chosen, known)
        show.table(out, table, rows)
    if not well:
        raise typer.Exit(1)


def _time(chosen: "Choice", device: str, root: Path, quiet: bool) -> bool:
    from remnant.experiments.execute.plan import pick_device
    from remnant.experiments.paper.timing import by_benchmark, measure_all

    pick_device(device)  # refused once, and not for every benchmark

    def say(line: str) -> None:
        if not quiet:
            out.print(line, highlight=False)

    return _each(by_benchmark(chosen.to_run()), lambda rows: measure_all(rows, device, root, say))


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


@app.command()
def keep(
    runs: Root = Path("runs"),
    results: Annotated[Path, typer.Argument(help="Where to keep them.")] = Path("results"),
) -> None:
    """Copy the small files of finished runs (matrices, settings, timings; no checkpoints) for safe keeping."""
    with friendly_errors():
        from remnant.experiments.paper import times
        from remnant.experiments.runs.folder import RunError, keep_results, readable_runs

        if not runs.is_dir():
            raise RunError(f"There is no folder {runs} with runs to keep. Name it with --runs.")
        if results.exists() and results.samefile(runs):
            raise RunError(f"The runs are in {runs} already: name another folder to keep them in.")
        readable, troubles = readable_runs(runs)
        for trouble in troubles:
            tell(trouble)
        finished = [found for found in readable if found.finished]
        for found in finished:
            keep_results(found, results)
        timed = times.keep(runs, results)
        if not (finished or timed or troubles):
            raise RunError(
                f"No run in {runs} is finished: nothing was kept. Name another folder with --runs, or resume what is there."
            )
        words = f"Kept {len(finished)} run(s)" + (f" and the times of {timed} benchmark(s)" if timed else "")
        out.print(f"{words} in {results}.", soft_wrap=True, highlight=False, markup=False)
    if troubles:
        raise typer.Exit(1)


@app.command()
def report(
    folders: Annotated[list[Path] | None, typer.Argument(help="Folders with run folders in them [results].")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the report.")] = Path("report"),
    docs: Annotated[
        Path | None, typer.Option(help="Also write results.md (with results-notes.md in it) and figures/ here.")
    ] = None,
) -> None:
    """Every table and figure of the paper from run folders: one page, and files as SVG, PNG, Markdown, CSV, LaTeX."""
    with friendly_errors():
        from remnant.report import write_report

        written = write_report(folders or [Path("results")], output, docs)
        for line in written.damaged:
            err.print(f"[yellow]Left out:[/yellow] {plain(line)}", soft_wrap=True, highlight=False)
        unfinished = f", {written.unfinished} unfinished" if written.unfinished else ""
        counts = f"{written.runs} finished run(s){unfinished}, {written.tables} tables, {written.figures} figures"
        out.print(f"{written.page}: {counts}", soft_wrap=True, highlight=False, markup=False)


@app.command()
def demo() -> None:
    """Permuted digits: GPM, plain fine-tuning and joint training, side by side; under a minute on two cores."""
    with friendly_errors():
        from . import demo as demonstration

        demonstration.run(out, err)
