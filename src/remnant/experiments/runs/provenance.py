"""Runs made before. The digest in a run's place is of its settings: code and streams may have changed under the same one."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import torch

from .environment import environment, stream_file
from .folder import RESULT, RunError, RunFolder

CODE = ("remnant", "commit", "modified")


def finished_before(folder: RunFolder) -> str:
    """What to say of a result that is shown without being made: when it was, and by which code."""
    when = datetime.fromtimestamp((folder.path / RESULT).stat().st_mtime)
    environment = _environment(folder)
    code = " after ".join(_code(each) for each in (environment, *environment.get("before", [])))
    return f"finished before ({when:%Y-%m-%d %H:%M}, {code}), not run again; remove {folder.path} to run it anew"


def note_code(folder: RunFolder, device: torch.device) -> str:
    """Where a run goes on with other code than it had: that is noted beside what it had, and the sentence to say of it."""
    had, has = _environment(folder), environment(device, folder.benchmark)
    if all(had.get(name) == has[name] for name in CODE):
        return ""
    folder.save_environment({**has, "before": [{name: had.get(name) for name in CODE}, *had.get("before", [])]})
    return f"goes on with {_code(has)}, after {_code(had)}: if the method has changed in between, the result is of two"


def check_stream(folder: RunFolder) -> None:
    """Refuses a run of one's own stream whose file has changed since: results of two streams would pass for one's."""
    noted, now = _environment(folder).get("stream_file"), stream_file(folder.benchmark)
    if noted is None or now is None or noted == now:  # without the file, loading it says more
        return
    file = folder.benchmark.rpartition(":")[0]
    raise RunError(
        f"{folder.path} was begun with another {file} than there is now. Put the file back to go on with it or to see "
        f"its result; or remove {folder.path.parent}, or remnant run it with another --runs folder, to run it as it is."
    )


def _environment(folder: RunFolder) -> dict[str, Any]:
    try:
        return folder.environment() or {}
    except RunError:  # damaged, which is no reason not to go on
        return {}


def _code(environment: dict[str, Any]) -> str:
    if commit := environment.get("commit"):
        return f"commit {commit[:7]}" + (" with changes" if environment.get("modified") else "")
    return f"remnant {environment.get('remnant', 'of an unknown release')}"
