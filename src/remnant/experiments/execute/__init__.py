"""Carries out runs: `run(Plan(resolve("permuted-digits", "gpm"), seeds=(0,), root=Path("runs")))`."""

from .build import build_method
from .launch import HERE, Plan, pick_devices, prepare_torch, run, run_together
from .one_run import Progress, RunInProgress, Watcher
from .resume import unfinished
from .search import Search
from .sweep import finished_runs, sweep_rows, sweep_settings, without_drift

__all__ = [
    "HERE",
    "Plan",
    "Progress",
    "RunInProgress",
    "Search",
    "Watcher",
    "build_method",
    "finished_runs",
    "pick_devices",
    "prepare_torch",
    "run",
    "run_together",
    "sweep_rows",
    "sweep_settings",
    "unfinished",
    "without_drift",
]
