"""What a run ran on: versions, device, commit and the user's own files. It names no person, host or path."""

import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import remnant


def environment(device: torch.device | str | None = None, files: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The content of `environment.json`; it never fails.

    Args:
        device: the device of the run; by default the GPU if there is one.
        files: hashes of the user's own files (see `provenance.file_hashes`).
    """
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
        **(files or {}),
    }


def _device_name(device: torch.device | str | None) -> str:
    """The product's name: 'NVIDIA H200', or the model of the CPU."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = torch.device(device)
    try:
        return torch.cuda.get_device_name(chosen) if chosen.type == "cuda" else _cpu_name()
    except (RuntimeError, AssertionError, ValueError):  # there is no such device, which the run itself reports
        return str(chosen)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
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
