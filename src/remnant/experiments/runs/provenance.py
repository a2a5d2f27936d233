"""Which code and files a run was made with. The digest covers only settings, so the code may change under it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from remnant.registry import file_of, is_file_reference

from .environment import environment
from .files import RunError

if TYPE_CHECKING:
    from .folder import RunFolder

CODE = ("remnant", "commit", "modified")


def own_files(settings: Mapping[str, Any]) -> dict[str, Path]:
    """The user's own files in a run's settings, under their names in `environment.json`."""
    network = settings.get("network")
    names = {
        "stream_file": settings.get("benchmark"),
        "method_file": settings.get("method"),
        "network_file": network.get("name") if isinstance(network, dict) else None,
    }
    return {key: file_of(name) for key, name in names.items() if isinstance(name, str) and is_file_reference(name)}


def file_hashes(settings: Mapping[str, Any]) -> dict[str, str]:
    """Sixteen hexadecimal digits for the content of each of the user's own files that can be read."""
    found = {}
    for key, path in own_files(settings).items():
        with suppress(OSError):
            found[key] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return found


def check_files(folder: RunFolder) -> None:
    """Refuses a run if one of the user's own files has changed since it began: its result would mix two versions."""
    noted = _environment(folder)
    for key, now in file_hashes(folder.settings).items():
        if noted.get(key) not in (None, now):
            raise RunError(
                f"{folder.path} was made with another version of {own_files(folder.settings)[key]}. Restore that version "
                f"to resume the run or to see its result. To run the new version, remove {folder.path.parent}, or choose "
                "another folder with --runs."
            )


def note_code(folder: RunFolder, device: torch.device) -> str:
    """Notes a change of our code in `environment.json` when a run is resumed; returns a warning, or an empty string."""
    before, now = _environment(folder), environment(device, file_hashes(folder.settings))
    if all(before.get(name) == now[name] for name in CODE):
        return ""
    earlier_code = [{name: before.get(name) for name in CODE}, *before.get("before", [])]
    folder.save_environment({**now, "before": earlier_code})
    return (
        f"resumed with {_code(now)}, but begun with {_code(before)}: if the method has changed, the result mixes two "
        "versions of the code"
    )


def finished_before(folder: RunFolder) -> str:
    """A note about a result that is only shown: when it was made, and by which code."""
    when = datetime.fromtimestamp(folder.finished_at)
    environment = _environment(folder)
    code = " after ".join(_code(each) for each in (environment, *environment.get("before", [])))
    return f"already finished ({when:%Y-%m-%d %H:%M}, {code}); remove {folder.path} to run it again"


def _environment(folder: RunFolder) -> dict[str, Any]:
    try:
        return folder.environment() or {}
    except RunError:  # a damaged environment.json is no reason to stop
        return {}


def _code(environment: dict[str, Any]) -> str:
    if commit := environment.get("commit"):
        return f"commit {commit[:7]}" + (" with changes" if environment.get("modified") else "")
    return f"remnant {environment.get('remnant', 'of an unknown release')}"
