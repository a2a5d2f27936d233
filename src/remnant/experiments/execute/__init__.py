"""Carries out runs: `run(Plan(resolve("permuted-digits", "gpm"), seeds=(0,), root=Path("runs")))`."""

from .build import build_method
from .launch import Plan, pick_device, prepare_torch, run
from .one_run import Progress, RunInProgress, Watcher
from .resume import unfinished
from .sweep import sweep_rows, sweep_settings, without_drift

__all__ = [
    "Plan",
    "Progress",
    "RunInProgress",
    "Watcher",
    "build_method",
    "pick_device",
    "prepare_torch",
    "run",
    "sweep_rows",
    "sweep_settings",
    "unfinished",
    "without_drift",
]
