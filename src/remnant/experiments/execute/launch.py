"""Runs a plan: one seed, several CPU processes, or several seeds side by side on a GPU."""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.queues import Queue
from typing import Any

import torch

from remnant.errors import UserError
from remnant.training import run_to_completion

from ..runs import RunError, RunFolder, finished_before
from .gpu_scheduler import run_on_gpu
from .one_run import Progress, RunInProgress, Watcher
from .plan import Plan, pick_device, prepare_torch


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
        finished = [seed for seed in sorted(folders) if folders[seed].finished]
        for seed in finished:
            folders[seed].clear_checkpoints()  # a kill right after the result leaves them
            watch(Progress(seed, note=finished_before(folders[seed])))
        _run_seeds(plan, [seed for seed in folders if seed not in finished], device, watch)
    except Exception:
        for folder in folders.values():
            _remove_if_unused(folder, watch)
        raise
    return list(folders.values())


def _run_seeds(plan: Plan, seeds: Sequence[int], device: torch.device, watch: Watcher) -> None:
    if seeds and device.type == "cuda":
        parallel = plan.parallel or len(seeds)
        for start in range(0, len(seeds), parallel):
            run_on_gpu(plan, seeds[start : start + parallel], device, watch)
    elif len(seeds) == 1:
        run_seed(plan, seeds[0], watch)
    elif seeds:
        _run_in_processes(plan, seeds, watch)


def _remove_if_unused(folder: RunFolder, watch: Watcher) -> None:
    """Removes a folder that this call made in vain. One that existed before may be wanted, so it is only named."""
    with suppress(RunError), folder.lock():  # leaves alone what another process is writing
        if folder.new and not folder.begun:
            folder.remove()
        elif not folder.begun:
            note = f"no epoch was ever completed in {folder.path}; remove it if you do not need it"
            watch(Progress(folder.seed, note=note))


def run_seed(plan: Plan, seed: int, watch: Watcher) -> None:
    """Runs one seed to its end, unless it is finished already."""
    folder = plan.folder(seed)
    with folder.lock():
        if not folder.finished:
            folder.save_execution(plan.execution)
            run_to_completion(RunInProgress(plan, seed, folder, watch).work())


def _run_in_processes(plan: Plan, seeds: Sequence[int], watch: Watcher) -> None:
    """Runs each seed in a process of its own, `plan.parallel` or one per core at a time."""
    context = multiprocessing.get_context("spawn")
    messages: Queue[Progress | str] = context.Queue()
    waiting, running = list(seeds), dict[int, Any]()
    errors: list[str] = []
    limit = plan.parallel or os.cpu_count() or 1
    while waiting or running:
        while waiting and len(running) < limit:
            seed = waiting.pop(0)
            running[seed] = context.Process(target=_run_in_child, args=(plan, seed, messages))
            running[seed].start()
        try:
            message = messages.get(timeout=0.2)
            if isinstance(message, Progress):
                watch(message)
            else:
                errors.append(message)
        except queue.Empty:
            pass
        for seed, process in list(running.items()):
            if not process.is_alive() and messages.empty():
                running.pop(seed).join()
                if process.exitcode not in (0, None):
                    errors.append(f"Seed {seed}: its process ended with code {process.exitcode}.")
    if errors:
        raise RunError(" ".join(sorted(errors)) + " Finished tasks are kept; run the same command again to continue.")


def _run_in_child(plan: Plan, seed: int, messages: Queue[Progress | str]) -> None:
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        prepare_torch(pick_device(plan.device), deterministic=plan.deterministic, tf32=plan.tf32)
        run_seed(plan, seed, messages.put)
    except RunError as error:  # its message names the run
        messages.put(str(error))
    except (UserError, OSError) as error:
        messages.put(f"Seed {seed}: {error}")
    except Exception as error:  # a bug, most likely in the user's own method: show all of it
        traceback.print_exc()
        messages.put(f"Seed {seed}: {type(error).__name__}: {error}")
    except KeyboardInterrupt:  # the parent receives it too, and reports it
        os._exit(130)


def _exit_with_parent() -> None:
    """Ends this process when its parent is killed. Otherwise it would keep the run's lock and wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
