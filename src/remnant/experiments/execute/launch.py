"""Runs a plan: one seed, several CPU processes, or several seeds side by side on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch

from ..runs import RunError, RunFolder, finished_before
from .gpu_scheduler import run_on_gpu
from .one_run import Progress, Watcher, run_seed
from .plan import Plan, pick_device, prepare_torch
from .processes import run_in_processes


def run(plan: Plan, watch: Watcher | None = None) -> list[RunFolder]:
    """Runs every seed of a plan that is not finished yet. An interrupted seed continues from its checkpoint.

    Args:
        plan: what to run and how.
        watch: called with a `Progress` after every epoch and task, and for notes.

    Returns:
        The folders of all seeds; `folder.result()["acc"]` is a seed's ACC.

    Raises:
        RunError: if a run cannot start or continue. Folders that the call made in vain are removed.
    """
    watch = watch or (lambda progress: None)
    device = pick_device(plan.device)
    prepare_torch(device, deterministic=plan.deterministic, tf32=plan.tf32)
    folders: dict[int, RunFolder] = {}
    try:
        for seed in plan.seeds:
            folders[seed] = plan.folder(seed)
        finished = sorted(seed for seed, folder in folders.items() if is_done(folder))
        for seed in finished:
            watch(Progress(seed, note=finished_before(folders[seed])))
        _run_seeds(plan, [seed for seed in folders if seed not in finished], device, watch)
    except Exception:
        for folder in folders.values():
            _remove_if_unused(folder, watch)
        raise
    return list(folders.values())


def is_done(folder: RunFolder) -> bool:
    """Whether a run has its result. Removes checkpoints that a kill right after the result left behind."""
    if folder.finished:
        folder.clear_checkpoints()
    return folder.finished


def _run_seeds(plan: Plan, seeds: Sequence[int], device: torch.device, watch: Watcher) -> None:
    if seeds and device.type == "cuda":
        parallel = plan.parallel or len(seeds)
        for start in range(0, len(seeds), parallel):
            run_on_gpu(plan, seeds[start : start + parallel], device, watch)
    elif len(seeds) == 1:
        run_seed(plan, seeds[0], watch)
    elif seeds:
        run_in_processes(plan, seeds, watch)


def _remove_if_unused(folder: RunFolder, watch: Watcher) -> None:
    """Removes a folder that this call made in vain. One that existed before may be wanted, so it is only named."""
    with suppress(RunError), folder.lock():  # leaves alone what another process is writing
        if folder.new and not folder.begun:
            folder.remove()
        elif not folder.begun:
            watch(
                Progress(
                    folder.seed, note=f"no epoch was ever completed in {folder.path}; remove it if you do not need it"
                )
            )
