"""Carries out runs: `run(Plan(resolve("permuted-digits", "gpm"), seeds=(0,), root=Path("runs")))`."""

from .factory import build_method
from .launch import run
from .one_run import Progress, RunInProgress, Watcher
from .plan import Plan, parse_seeds, pick_device, prepare_torch, unfinished
from .sweep import Sweep, without_drift

__all__ = [
    "Plan",
    "Progress",
    "RunInProgress",
    "Sweep",
    "Watcher",
    "build_method",
    "parse_seeds",
    "pick_device",
    "prepare_torch",
    "run",
    "unfinished",
    "without_drift",
]
