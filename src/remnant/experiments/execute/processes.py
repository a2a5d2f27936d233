"""Several seeds on a CPU: one process each."""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
import traceback
from collections.abc import Sequence
from multiprocessing.queues import Queue
from typing import Any

from remnant.errors import UserError

from ..runs import RunError
from .one_run import Progress, Watcher, run_seed
from .plan import Plan, pick_device, prepare_torch


def run_in_processes(plan: Plan, seeds: Sequence[int], watch: Watcher) -> None:
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
