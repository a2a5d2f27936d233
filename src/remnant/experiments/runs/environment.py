"""What a run ran on: versions, device, and the commit of the code. Never fails, and names no person, host or path."""

import hashlib
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import remnant

from ..settings.recipe import is_own_stream


def environment(device: torch.device | str | None = None, benchmark: str = "") -> dict[str, Any]:
    """`device` is the one the run uses; by default the GPU where there is one. Of one's own stream, its file is noted."""
    content = stream_file(benchmark)
    return {
        "remnant": remnant.__version__,
        **_source(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        **({} if content is None else {"stream_file": content}),
    }


def stream_file(benchmark: str) -> str | None:
    """Sixteen hexadecimal digits of what is in the file of one's own stream; None for one of ours, or without the file."""
    if not is_own_stream(benchmark):
        return None
    try:
        content = Path(benchmark.rpartition(":")[0]).expanduser().read_bytes()
    except OSError:
        return None
    return hashlib.sha256(content).hexdigest()[:16]


def device_name(device: torch.device | str | None = None) -> str:
    """The product's name: 'NVIDIA H200', or the model of the CPU."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = torch.device(device)
    try:
        return torch.cuda.get_device_name(chosen) if chosen.type == "cuda" else _cpu_name()
    except (RuntimeError, AssertionError, ValueError):  # no such device: for the run to say, not for its record
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
    """The commit of the checkout this package runs from, and whether it had been changed; None where installed."""
    # Asked of a file of ours: a package installed inside somebody's repository is not under that one's commits.
    if not _git("ls-files", "--", "__init__.py"):
        return {"commit": None, "modified": None}
    return {"commit": _git("rev-parse", "HEAD") or None, "modified": bool(_git("status", "--porcelain", "--", "."))}


def _git(*arguments: str) -> str:
    package = Path(remnant.__file__).parent
    # Inside a hook of git, its variables would point at the repository of the hook.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(package), *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, env=variables, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()
