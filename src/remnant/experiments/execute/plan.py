"""Runs several seeds at once: side by side on streams of one GPU, or over the processes of a CPU."""

from __future__ import annotations

import multiprocessing
import os
import queue as queues
import threading
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import torch

from remnant.accelerated import STEPS
from remnant.data.errors import DataError

from ..runs.folder import RunError, RunFolder
from ..runs.provenance import check_stream, finished_before
from ..settings.resolve import Settings, SettingsError, shorten
from .gpu_scheduler import run_side_by_side
from .run import Progress, Run, Watcher

LARGEST_SEED = 2**32 - 1
MOST_SEEDS = 10_000

EXECUTION = ("deterministic", "tf32", "steps", "checkpoint_every", "drift")


@dataclass(frozen=True)
class Plan:
    """What to run, and how."""

    settings: Settings
    seeds: tuple[int, ...]
    root: Path
    device: str = "auto"
    parallel: int = 0  # seeds at a time; 0: as many as the device takes
    deterministic: bool = False
    tf32: bool = True
    steps: str = "auto"
    checkpoint_every: int = 20
    checkpoint_seconds: float = 60.0
    drift: bool = False  # whether to record how far layers drift for the first task

    def __post_init__(self) -> None:
        if self.steps not in STEPS:
            raise RunError(f"--steps {self.steps}: no such way to take steps. Use {', '.join(STEPS)}.")

    @property
    def execution(self) -> dict[str, Any]:
        """What resuming must know beside the settings, to go on in the same way."""
        return {name: getattr(self, name) for name in EXECUTION}

    def folder(self, seed: int) -> RunFolder:
        device = pick_device(self.device)
        folder = RunFolder.create(self.root, self.settings, seed, device=device, execution=self.execution)
        check_stream(folder)
        return folder

    def run(self, seed: int, folder: RunFolder, watch: Watcher) -> Run:
        return Run(
            self.settings,
            seed,
            folder,
            pick_device(self.device),
            watch,
            checkpoint_every=self.checkpoint_every,
            checkpoint_seconds=self.checkpoint_seconds,
            steps=self.steps,
            drift=self.drift,
        )


def pick_device(wanted: str) -> torch.device:
    if wanted == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise RunError(f"--device {wanted}: no such device. Use auto, cpu, cuda or cuda:N.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RunError(
            f"--device {wanted}: there is no CUDA device here (torch {torch.__version__}). Use --device cpu."
        )
    if device.type == "cpu":
        return torch.device("cpu")
    if (index := device.index or 0) >= torch.cuda.device_count():
        raise RunError(f"--device {wanted}: there are {torch.cuda.device_count()} CUDA devices here, numbered from 0.")
    return torch.device("cuda", index)


def execute(plan: Plan, watch: Watcher) -> list[RunFolder]:
    """Runs every seed that is not finished yet; gives the folders of all.

    Failing, it leaves no folder that it made and in which nothing was run: nothing there could be gone on with.
    """
    device = pick_device(plan.device)
    prepare(device, deterministic=plan.deterministic, tf32=plan.tf32)
    folders: dict[int, RunFolder] = {}
    try:
        for seed in plan.seeds:
            folders[seed] = plan.folder(seed)
        before = {seed for seed, folder in folders.items() if done(folder)}
        for seed in sorted(before):
            watch(Progress(seed, note=finished_before(folders[seed])))
        _run_all(plan, [seed for seed in folders if seed not in before], device, watch)
    except Exception:
        for folder in folders.values():
            _tidy(folder, watch)
        raise
    return list(folders.values())


def _tidy(folder: RunFolder, watch: Watcher) -> None:
    """Removes a folder that was made in vain; one that was there before may be wanted, and is only named."""
    with suppress(RunError), folder.lock():  # nothing that another process is at
        if folder.new and not folder.begun:
            folder.remove()
        elif not folder.begun:
            watch(Progress(folder.seed, note=f"nothing was ever run in {folder.path}: if it is not wanted, remove it"))


def _run_all(plan: Plan, todo: Sequence[int], device: torch.device, watch: Watcher) -> None:
    if todo and device.type == "cuda":
        parallel = plan.parallel or len(todo)
        for start in range(0, len(todo), parallel):
            _side_by_side(plan, todo[start : start + parallel], device, watch)
    elif len(todo) == 1:
        _one_seed(plan, todo[0], watch)
    elif todo:
        _over_processes(plan, todo, watch)


def prepare(device: torch.device, *, deterministic: bool, tf32: bool) -> None:
    """Process-wide switches, before the first kernel."""
    torch.set_float32_matmul_precision("high" if tf32 and not deterministic else "highest")
    torch.backends.cudnn.allow_tf32 = tf32 and not deterministic
    torch.backends.cudnn.benchmark = False  # trying algorithms out gains next to nothing, and chooses by the moment
    # With more room to work in, cuBLAS splits a small product among many blocks and adds up their shares. That fills a GPU
    # which has nothing else to do: 7 % of a step won for one AlexNet alone, and lost for each of five. So it is never given
    # more, not even alone: how a run rounds must not depend on what runs beside it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    if deterministic != torch.are_deterministic_algorithms_enabled():  # to set it loads torch's compiler: seconds
        torch.use_deterministic_algorithms(deterministic)
    if device.type == "cpu":
        torch.set_num_threads(1)  # small models: a second thread slows them down, a second process does not


def _side_by_side(plan: Plan, seeds: Sequence[int], device: torch.device, watch: Watcher) -> None:
    with ExitStack() as opened:
        runs = []
        for seed in seeds:
            folder = plan.folder(seed)
            opened.enter_context(folder.lock())
            if not folder.finished:  # by another process, between the first look and the lock
                folder.save_execution(plan.execution)
                runs.append(plan.run(seed, folder, watch))
        try:
            run_side_by_side(runs, device)
        except torch.cuda.OutOfMemoryError as error:
            raise RunError(
                f"The GPU ran out of memory with {len(seeds)} seed(s) side by side. Finished tasks are kept: run the same "
                f"command with --parallel {max(1, len(seeds) // 2)}. ({str(error).splitlines()[0]})"
            ) from error


def _one_seed(plan: Plan, seed: int, watch: Watcher) -> None:
    folder = plan.folder(seed)
    with folder.lock():
        if folder.finished:
            return
        folder.save_execution(plan.execution)
        for start in plan.run(seed, folder, watch).work():
            if start is not None:
                start()


def _child(plan: Plan, seed: int, said: Queue[Any]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        prepare(pick_device(plan.device), deterministic=plan.deterministic, tf32=plan.tf32)
        _one_seed(plan, seed, said.put)
    except RunError as error:  # says which
        said.put(str(error))
    except (DataError, SettingsError, OSError) as error:
        said.put(f"Seed {seed}: {error}")
    except Exception as error:  # a mistake in the code, a method's most likely: whoever wrote it wants to see all of it
        traceback.print_exc()
        said.put(f"Seed {seed}: {type(error).__name__}: {error}")
    except KeyboardInterrupt:  # the parent has it too, and says so
        os._exit(130)


def _end_with_parent() -> None:
    """Left behind by a kill, a child would hold its run's lock and wait for ever for someone to hear it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _over_processes(plan: Plan, seeds: Sequence[int], watch: Watcher) -> None:
    context = multiprocessing.get_context("spawn")
    said: Queue[Any] = context.Queue()
    waiting = list(seeds)
    running: dict[int, Any] = {}
    errors: list[str] = []
    limit = plan.parallel or os.cpu_count() or 1
    while waiting or running:
        while waiting and len(running) < limit:
            seed = waiting.pop(0)
            running[seed] = context.Process(target=_child, args=(plan, seed, said))
            running[seed].start()
        try:
            message = said.get(timeout=0.2)
            if isinstance(message, Progress):
                watch(message)
            elif isinstance(message, str):
                errors.append(message)
        except queues.Empty:
            pass
        for seed, process in list(running.items()):
            if not process.is_alive() and said.empty():
                running.pop(seed).join()
                if process.exitcode not in (0, None):
                    errors.append(f"Seed {seed}: its process ended with code {process.exitcode}.")
    if errors:
        raise RunError(" ".join(sorted(errors)) + " Finished tasks are kept; run the same command again to go on.")


def parse_seeds(text: str) -> tuple[int, ...]:
    """`5` means seeds 0 to 4; `1,3` means those two, `7,` that one."""
    shown = shorten(text, 40)
    try:
        numbers = tuple(int(word) for word in text.removesuffix(",").split(","))
    except ValueError:
        raise RunError(f"--seeds {shown}: write how many (5), or which (1,3).") from None
    if any(number < 0 for number in numbers) or ("," not in text and numbers[0] < 1):
        raise RunError(f"--seeds {shown}: at least one, and none negative.")
    if max(numbers) > LARGEST_SEED:
        raise RunError(f"--seeds {shown}: a seed is at most {LARGEST_SEED:,}.")
    if "," in text:
        return tuple(dict.fromkeys(numbers))
    if numbers[0] > MOST_SEEDS:  # a seed's own number, most likely: so many folders would fill a disk first
        raise RunError(f"--seeds {shown}: that many are too many. For the one seed {numbers[0]} write --seeds {shown},")
    return tuple(range(numbers[0]))


def done(folder: RunFolder) -> bool:
    """Whether it has its result; checkpoints that a kill just after that left behind are removed."""
    if folder.finished:
        folder.clear_checkpoints()
    return folder.finished
