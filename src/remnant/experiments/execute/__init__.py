"""Carries out runs: `run(Plan(resolve("permuted-digits", "gpm"), seeds=(0,), root=Path("runs")))`."""

from .launch import Plan, pick_device, prepare_torch, run
from .one_run import Progress, RunInProgress, Watcher, build_method
from .resume import unfinished
from .sweep import Sweep, without_drift

__all__ = [
    "Plan",
    "Progress",
    "RunInProgress",
    "Sweep",
    "Watcher",
    "build_method",
    "pick_device",
    "prepare_torch",
    "run",
    "unfinished",
    "without_drift",
]
