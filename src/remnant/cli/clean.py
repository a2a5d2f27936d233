"""`remnant clean`: lists unfinished, duplicate and corrupted runs, asks, and removes them."""

from pathlib import Path
from typing import Annotated

from typer import Abort, Argument, Exit, Option, confirm

from remnant.errors import UserError, did_you_mean

from .app import app, err, print_note, print_text
from .runs import for_each

RESUMES = " (remnant resume would continue them.)"


@app.command()
def clean(
    folder: Annotated[Path, Argument(help="A folder that contains runs.")] = Path("runs"),
    only: Annotated[str, Option(help="Only one kind: unfinished, duplicate or corrupted.")] = "",
    yes: Annotated[bool, Option("--yes", "-y", help="Remove them without asking.")] = False,
) -> None:
    """Remove unfinished, duplicate and corrupted runs. Lists them and asks first.

    Example: remnant clean runs --only corrupted
    """
    from remnant.experiments.runs import KINDS, find_unwanted, remove_run

    if only and only not in KINDS:
        raise UserError(f"--only {only}: there is no such kind of run. {did_you_mean(only, KINDS)}")
    unwanted, left = find_unwanted(folder)
    for sentence in left:
        print_note(f"{sentence}.", "Left alone")
    kinds = {kind: [run for run in unwanted if run.kind == kind] for kind in KINDS if only in ("", kind)}
    if not any(kinds.values()):
        print_text(f"Nothing to clean in {folder}.")
    complete = True
    for kind, runs in kinds.items():
        for run in runs:
            print_text(f"{kind}: {run.path} ({run.reason})")
        question = f"Remove {len(runs)} {kind} run{'s' * (len(runs) > 1)}?{RESUMES * (kind == KINDS[0])}"
        if runs and (yes or _confirmed(question)):
            complete = for_each(runs, lambda run: remove_run(run, folder)) and complete
            gone = sum(not run.path.exists() for run in runs)
            print_text(f"Removed {gone} {kind} run{'s' * (gone != 1)}.", err)
    raise Exit(int(not complete))


def _confirmed(question: str) -> bool:
    try:
        return confirm(question, err=True)
    except Abort:
        raise UserError("Nobody answered, so nothing more was removed. Use --yes to remove without asking.") from None
