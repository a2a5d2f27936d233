"""What a run was made with: versions, device, commit and the user's own files, but no person, host or path.

The digest of a run covers only its settings, so the code may change while the digest stays. Resuming checks for that.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import remnant
from remnant.data import DATA_PATH, data_path
from remnant.errors import RunError
from remnant.files import fingerprint
from remnant.registry import IN_FILE, UnknownNameError, file_of

from .contents import File

if TYPE_CHECKING:
    from .folder import RunFolder

CODE = ("remnant", "commit", "modified")


def own_files(settings: Mapping[str, Any]) -> dict[str, Path]:
    """The user's own files and data in a run's settings that can be read, by their keys in `environment.json`."""
    names = {"stream": settings.get("benchmark", ""), "method": settings.get("method", "")}
    names |= {part: settings.get(part, {}).get("name", "") for part in ("network", "optimizer")}
    paths = {f"{part}_file": file_of(name) for part, name in names.items() if IN_FILE in name}
    if "stream_file" not in paths and DATA_PATH.search(names["stream"]):
        with suppress(UnknownNameError):  # the path holds no data set, which the run itself reports
            paths["stream_data"] = data_path(names["stream"])
    return {key: path for key, path in paths.items() if os.access(path, os.R_OK)}


def check_files(folder: RunFolder) -> None:
    """Refuses a run if one of the user's own files has changed since it began: its result would mix two versions."""
    for key, path in own_files(folder.settings).items():
        if _environment(folder).get(key) not in (None, fingerprint(path)):
            raise RunError(
                f"{folder.path} was made with another version of {path}. Restore that version to resume or "
                f"repeat the run. To run the new version, remove {folder.path.parent}, or choose another folder with --runs."
            )


def doubtful_files(folder: RunFolder) -> list[Path]:
    """Returns the user's code that appeared after the run began or lies in its folder; it may come from someone else."""
    noted, top = _environment(folder), folder.path.resolve().parents[len(folder.relative_path.parts) - 2]
    return [
        path
        for key, path in own_files(folder.settings).items()
        if key.endswith("_file") and (not noted.get(key) or path.resolve().is_relative_to(top))
    ]


def note_code(folder: RunFolder, device: torch.device) -> str:
    """Notes a change of our code in `environment.json` when a run is resumed; returns a warning, or an empty string."""
    before, now = _environment(folder), environment(device, folder.settings)
    if all(before.get(name) == now[name] for name in CODE):
        return ""
    earlier_code = [{name: before.get(name) for name in CODE}, *before.get("before", [])]
    folder.save_environment({**now, "before": earlier_code})
    reason = "if the method has changed, the result mixes two versions of the code"
    return f"resumed with {_code(now)}, but started with {_code(before)}: {reason}"


def finished_before(folder: RunFolder) -> str:
    """Returns a note about a result that is shown and not computed again: when it was made, and by which code."""
    when = datetime.fromtimestamp((folder.path / File.RESULT).stat().st_mtime)
    last = _environment(folder)
    code = " after ".join(_code(each) for each in (last, *last.get("before", [])))
    return f"already finished ({when:%Y-%m-%d %H:%M}, {code}); remove {folder.path} to run it again"


def _environment(folder: RunFolder) -> dict[str, Any]:
    try:
        return folder.environment() or {}
    except RunError:  # a damaged environment.json must not stop a run
        return {}


def _code(noted: Mapping[str, Any]) -> str:
    if commit := noted.get("commit"):
        return f"commit {commit[:7]}" + (" with changes" if noted.get("modified") else "")
    return f"remnant {noted.get('remnant', 'of an unknown release')}"


def environment(device: torch.device | str | None = None, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The content of `environment.json` for a run with these settings."""
    return {
        "remnant": remnant.__version__,
        **_source(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": _device_name(device),
        "threads": torch.get_num_threads(),
        **{key: fingerprint(path) for key, path in own_files(settings or {}).items()},
    }


def _device_name(device: torch.device | str | None) -> str:
    """The product's name: 'NVIDIA H200', or the model of the CPU."""
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if chosen.type != "cpu":
        try:
            return torch.cuda.get_device_name(chosen)
        except (RuntimeError, AssertionError, ValueError):  # there is no such device, which the run itself reports
            return str(chosen)
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "") or platform.processor() or platform.machine() or "cpu"


@cache
def _source() -> dict[str, Any]:
    """The commit of the checkout this package runs from, and whether it was modified; None for an installed package."""
    # Ask about a file of ours: a package installed inside another repository is not part of that repository.
    if not _git("ls-files", "--", "__init__.py"):
        return {"commit": None, "modified": None}
    return {"commit": _git("rev-parse", "HEAD") or None, "modified": bool(_git("status", "--porcelain", "--", "."))}


def _git(*arguments: str) -> str:
    package = Path(remnant.__file__).parent
    # Inside a git hook these variables would point at the hook's repository.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(package), *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, env=variables, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()
