"""Runs that were cut off: how each of them goes on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..runs.folder import SETTINGS, RunError, RunFolder, readable_runs
from ..runs.json_file import damaged
from ..settings.resolve import Settings, SettingsError
from .plan import EXECUTION, Plan, done


class Unfinished(NamedTuple):
    """Plans to go on by, and what is wrong with folders that no plan can be made for."""

    plans: list[Plan]
    troubles: list[str]


def unfinished(path: Path, device: str, parallel: int, **asked: Any) -> Unfinished:
    """Plans for every run below a folder that has no result yet, seeds of the same settings together.

    Each goes on as it was carried out before, but for what is `asked` (of EXECUTION; None: as before).
    """
    found, troubles = readable_runs(path)
    if not found and not troubles:
        raise RunError(f"{path} holds no run. Run folders are runs/<benchmark>/<method>/<digest>/seed<k>.")
    together: dict[tuple[Any, ...], list[RunFolder]] = {}
    for folder in found:
        try:
            if not done(folder):
                how = (_root(folder), folder.path.parent, _execution(folder, asked))
                _check_unchanged(folder)
                together.setdefault(how, []).append(folder)
        except RunError as error:
            troubles.append(str(error))
    plans = [
        Plan(
            Settings.from_dict(folders[0].settings),
            tuple(sorted(folder.seed for folder in folders)),
            root,
            device,
            parallel,
            **dict(how),
        )
        for (root, _, how), folders in together.items()
    ]
    return Unfinished(plans, troubles)


def _execution(folder: RunFolder, asked: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    execution = {**(folder.execution() or {}), **{name: value for name, value in asked.items() if value is not None}}
    return tuple((name, execution[name]) for name in EXECUTION if name in execution)


def _check_unchanged(folder: RunFolder) -> None:
    """Refuses settings that were edited: they are another run's, which would begin anew in another folder."""
    try:
        digest = Settings.from_dict(folder.settings).digest
    except SettingsError as error:
        raise RunError(f"{folder.path / SETTINGS}: {error}") from error
    except (ValueError, TypeError, AttributeError) as error:  # a number where there should be a table
        raise damaged(folder.path / SETTINGS, error) from error
    if digest != folder.digest:
        raise RunError(
            f"The settings in {folder.path} are not those the run began with (were they edited?). Put them back, "
            "or start a run with the new ones: remnant run … --set …"
        )


def _root(folder: RunFolder) -> Path:
    """The folder of all runs that this one is in."""
    path = folder.path.resolve()
    parts = folder.place.parts
    root = Path(*path.parts[: -len(parts)])
    if path.parts[-len(parts) :] != parts:
        raise RunError(f"{folder.path} was moved: a run is resumed where it was made, in a folder …/{folder.place}.")
    return root
