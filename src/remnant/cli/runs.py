"""Commands that start runs."""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option, confirm

from remnant.errors import UserError

from .app import app, err, print_error, print_failure, print_note, print_rows, print_text

if TYPE_CHECKING:
    from remnant.experiments.execute import Plan
    from remnant.experiments.settings import Settings

Benchmark = Annotated[
    str,
    Argument(help="A benchmark (remnant list benchmarks), path/to/file.py:name, a folder/ of data or an .npz file."),
]
Method = Annotated[str, Argument(help="A method (remnant list methods), or path/to/file.py:Name.")]
Methods = Annotated[
    str, Argument(help="A method (remnant list methods), path/to/file.py:Name, or several: gpm,ewc,er.")
]
Root = Annotated[Path, Option("--runs", help="The folder for runs.")]
Seeds = Annotated[str, Option(help="How many (5: seeds 0 to 4), or which (1,3; write 7, for seed 7 alone).")]
Device = Annotated[
    str, Option(help="cpu, cuda (all GPUs), some GPUs (cuda:0,cuda:2), or auto (GPUs if there are any).")
]
Parallel = Annotated[
    int, Option(min=0, help="Seeds to run at once, per GPU or on the CPU. 0: all per GPU, one per CPU core.")
]
On = Annotated[
    str, Option(help="Where to run: here, ray, ray:HOST:PORT, slurm or slurm:partition=gpu,time=240 (docs/cluster.md).")
]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print only the result.")]
Log = Annotated[str, Option(help="Also log to tensorboard, wandb or mlflow.", show_default=False)]
AS_BEFORE = " Default: as in the original run."
BIT_EQUAL = "Give bit-equal results on the same machine."
TF32 = "Use TensorFloat-32 on GPUs."
CHECKPOINTS = "Epochs between checkpoints. 0: only after each task."
LARGEST_SEED = 2**32 - 1
MOST_SEEDS = 10_000
SET = "Change a setting: lr=0.1, threshold.start=0.95, network.name=file.py:Net."


@dataclass(frozen=True)
class RunOptions:
    """The options that `run` and `sweep` share."""

    seeds: Seeds = "1"
    set: Annotated[list[str] | None, Option(help=SET)] = None
    protocol: Annotated[
        str, Option(help="paper: as the published scripts do it; sane: with their known faults corrected.")
    ] = "paper"
    device: Device = "auto"
    parallel: Parallel = 0
    on: On = "here"
    deterministic: Annotated[bool, Option("--deterministic", help=BIT_EQUAL)] = False
    tf32: Annotated[bool, Option(help=TF32)] = True
    steps: Annotated[
        str, Option(help="How to take steps: captured (CUDA graphs), eager (one by one) or auto (the fastest).")
    ] = "auto"
    checkpoint_every: Annotated[int, Option(min=0, help=CHECKPOINTS)] = 20
    runs: Root = Path("runs")
    log: Log = ""
    quiet: Quiet = False

    def plan(self, settings: "Settings", *, drift: bool = False) -> "Plan":
        from remnant.experiments.execute import Plan

        how = (self.device, self.parallel, self.deterministic, self.tf32, self.steps, self.checkpoint_every)
        return Plan(settings, parse_seeds(self.seeds), self.runs, *how, drift=drift, on=self.on)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Reads `--seeds`: `5` means seeds 0 to 4, `1,3` means these two, `7,` means this one."""
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    try:
        numbers = tuple(int(word) for word in text.removesuffix(",").split(","))
    except ValueError:
        raise UserError(f"--seeds {shown}: write how many (5), or which (1,3).") from None
    if min(numbers) < 0:
        raise UserError(f"--seeds {shown}: a seed is at least 0.")
    if "," not in text and numbers == (0,):
        raise UserError("--seeds 0: this asks for no seed. For the single seed 0, write --seeds 1.")
    if max(numbers) > LARGEST_SEED:
        raise UserError(f"--seeds {shown}: a seed is at most {LARGEST_SEED:,}.")
    if "," in text:
        return tuple(dict.fromkeys(numbers))
    if numbers[0] > MOST_SEEDS:  # most likely the number of one seed
        raise UserError(f"--seeds {shown}: too many seeds. For the single seed {numbers[0]}, write --seeds {shown},")
    return tuple(range(numbers[0]))


def _with_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the fields of `RunOptions` to the options of a command, which gets them as its argument `options`."""
    shared = inspect.signature(RunOptions).parameters

    @wraps(command)
    def run_command(**given: Any) -> None:
        command(options=RunOptions(**{name: given.pop(name) for name in shared}), **given)

    own = [each for name, each in inspect.signature(command).parameters.items() if name != "options"]
    # Typer reads the options from the signature.
    vars(run_command)["__signature__"] = inspect.Signature([*own, *shared.values()])
    return run_command


@app.command()
@_with_run_options
def run(benchmark: Benchmark, method: Methods, options: RunOptions) -> None:
    """Train methods on a benchmark. Finished seeds are skipped, and interrupted ones continue.

    Example: remnant run permuted-digits gpm --seeds 5 --set lr=0.05
    """
    from remnant.experiments.settings import resolve

    from .compare import run_several
    from .progress import run_plans

    changes = options.set or []
    one_file = Path(method.rpartition(":")[0]).expanduser().is_file()  # its path may contain a comma
    plans = []
    for name in [method] if one_file else dict.fromkeys(map(str.strip, method.split(","))):
        settings = resolve(benchmark, name, changes, options.protocol)
        by_hand = {change.partition("=")[0].partition(".")[0] for change in changes}
        if settings.optimizer and "optimizer" in by_hand and "lr" not in by_hand:
            chosen = f"{settings.optimizer['name']} uses lr={settings.options['lr']:g}, which was chosen for another optimizer"
            print_note(f"{chosen}. Change it with --set lr=…")
        plans.append(options.plan(settings))
    if len(plans) > 1:
        complete = run_several(plans, options.quiet, options.log)
    else:
        complete = run_plans(f"{benchmark} · {plans[0].settings.method}", {"": plans[0]}, options.quiet, options.log)
    raise Exit(int(not complete))


@app.command()
def resume(
    path: Annotated[Path, Argument(help="A run folder, or a folder that contains runs.")],
    device: Device = "auto",
    parallel: Parallel = 0,
    on: On = "here",
    deterministic: Annotated[bool | None, Option(help=BIT_EQUAL + AS_BEFORE)] = None,
    tf32: Annotated[bool | None, Option(help=TF32 + AS_BEFORE)] = None,
    checkpoint_every: Annotated[int | None, Option(min=0, help=CHECKPOINTS + AS_BEFORE)] = None,
    trust: Annotated[bool, Option("--trust", help="Allow Python files that came with a run folder to run.")] = False,
    log: Log = "",
    quiet: Quiet = False,
) -> None:
    """Continue interrupted runs with their original options.

    Example: remnant resume runs
    """
    from remnant.experiments.execute import unfinished

    from .progress import run_plans

    options = {"deterministic": deterministic, "tf32": tf32, "checkpoint_every": checkpoint_every}
    ask = (lambda reason: confirm(f"{reason}. Run it?", err=True)) if sys.stdin.isatty() else (lambda reason: False)
    plans, problems = unfinished(path, device, parallel, (lambda reason: True) if trust else ask, on, **options)
    if not plans and not problems:
        print_text(f"Nothing to resume in {path}: every run is finished.")
    for problem in problems:
        print_error(problem)
    if plans and not quiet:
        runs = sum(len(plan.seeds) for plan in plans)
        print_text(f"Resuming {runs} run{'s' * (runs > 1)} in {path}.", err)
    named: dict[str, Plan] = {}
    for plan in plans:  # plans in different folders or with different options may have the same settings
        name = f"{plan.settings.benchmark} {plan.settings.method} {plan.settings.digest}"
        named[f"{name} ({len(named) + 1})" if name in named else name] = plan
    complete = not plans or run_plans(f"Runs in {path}", named, quiet, log)
    raise Exit(int(not complete or bool(problems)))


@app.command()
@_with_run_options
def sweep(
    benchmark: Benchmark,
    method: Method,
    over: Annotated[
        list[str], Option(help="Values of a setting: samples=50,100. With --search, ranges too: lr=0.001..0.1:log.")
    ],
    options: RunOptions,
    search: Annotated[
        int, Option(min=0, help="Number of trials for Optuna, which chooses by validation accuracy. 0: no search.")
    ] = 0,
) -> None:
    """Run a method for several values of a setting. Prints ACC, BWT and memory for each.

    GPM also records the drift of each layer, which remnant report shows. With --search, Optuna chooses the values of one or
    more settings, by accuracy on validation sets.

    Example: remnant sweep permuted-digits gpm --over threshold.start=0.90,0.95,0.99
    """
    if "," in method and not Path(method.rpartition(":")[0]).expanduser().is_file():
        raise UserError(f"{method}: sweep takes one method. Call it once for each.")
    if search:
        from remnant.experiments.settings import resolve

        from .search import run_search

        given = options.set or []
        run_search(
            search,
            over,
            lambda changes: options.plan(resolve(benchmark, method, [*given, *changes], options.protocol)),
            options.quiet,
            options.log,
        )
        return
    from remnant.experiments.execute import sweep_rows, sweep_settings, without_drift

    from .progress import run_plans

    settings = sweep_settings(benchmark, method, over, options.set or (), options.protocol)
    plans = {change: options.plan(each, drift=True) for change, each in settings.items()}
    complete = run_plans(f"{benchmark} · {method}", plans, options.quiet, options.log, results=False)
    print_rows(f"{benchmark} · {method}", sweep_rows(plans))
    for sentence in without_drift(plans.values()):
        print_note(sentence)
    raise Exit(int(not complete))


@app.command()
def demo() -> None:
    """Compare GPM with fine-tuning on small digits. Takes under a minute on two cores.

    Example: remnant demo
    """
    from .demo import run_demo

    run_demo()


def for_each(work: Sequence[Any], do: Callable[[Any], object]) -> bool:
    """Does each piece of work, even if an earlier one failed. Returns whether all succeeded."""
    complete = True
    for piece in work:
        try:
            do(piece)
        except Exception as error:
            complete = False
            print_failure(error)
    return complete
