"""Finds interrupted runs, and makes plans that continue them in the way they were started."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from remnant.errors import RunError

from ..runs import RunFolder, doubtful_files, read_result, readable_runs
from ..settings import Settings
from .launch import EXECUTION, HERE, Plan


def unfinished(
    path: Path,
    device: str,
    parallel: int,
    trust: Callable[[str], bool] = lambda question: False,
    on: str = HERE,
    **execution: Any,
) -> tuple[list[Plan], list[str]]:
    """Returns plans for the unfinished runs at or below `path`, and a sentence for each run that cannot be resumed.

    Seeds with the same settings share a plan. `trust` is asked before a plan may run a Python file that was not there when
    the run began, or that lies in the run's folder. `execution` has options of `Plan` to change; None keeps the run's own.
    """
    if not path.exists():
        raise RunError(f"There is no folder {path}. Give a folder that contains run folders, such as runs.")
    found, problems = readable_runs(path)
    if not found and not problems:
        raise RunError(f"{path} contains no run. Run folders are runs/<benchmark>/<method>/<digest>/seed<k>.")
    changed = {name: value for name, value in execution.items() if value is not None}
    plans: dict[tuple[Any, ...], Plan] = {}
    for folder in found:
        try:
            if folder.finished:
                read_result(folder)
                folder.clear_checkpoints()  # a kill right after the result leaves them
                continue
            how = {**(folder.execution() or {}), **changed}
            options = {name: how[name] for name in EXECUTION if name in how}
            plan = Plan(_settings(folder), (folder.seed,), _root(folder), device, parallel, on=on, **options)
            _check_trust(folder, trust)
        except RunError as error:
            problems.append(str(error))
            continue
        key = plan.root, folder.digest, *plan.execution.values()
        seeds = plans[key].seeds if key in plans else ()
        plans[key] = replace(plan, seeds=(*seeds, folder.seed))
    return list(plans.values()), problems


def _check_trust(folder: RunFolder, trust: Callable[[str], bool]) -> None:
    for file in doubtful_files(folder):
        reason = f"{folder.path} would run {file}, which was not recorded at the start or is in the run's folder"
        if not trust(reason):
            raise RunError(f"{reason}. Read the file; if you trust it, resume with --trust.")


def _settings(folder: RunFolder) -> Settings:
    """Returns the run's settings. Refuses edited settings: they describe another run, which has another folder."""
    try:
        settings = Settings.from_dict(folder.settings)
        edited = settings.digest != folder.digest
    except ValueError as error:  # another release's settings, or a NaN
        raise RunError(f"{folder.path}/settings.json: {error}") from error
    if edited:
        raise RunError(
            f"The settings in {folder.path} have changed since the run was started. Were they edited? Restore them, "
            "or start a new run with them: remnant run … --set …"
        )
    return settings


def _root(folder: RunFolder) -> Path:
    """Returns the folder of all runs, from the path of this one."""
    if folder.moved:
        here = f"…/{folder.relative_path}"
        raise RunError(f"{folder.path} was moved. It can only be resumed in its original folder, {here}.")
    return folder.path.resolve().parents[len(folder.relative_path.parts) - 1]
