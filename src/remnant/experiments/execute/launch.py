"""Runs plans: in this process if one job at a time is enough, otherwise in worker processes or on a cluster."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from remnant.accelerated import STEP_KINDS
from remnant.data import BUILT_IN, load_stream
from remnant.errors import RunError, UserError
from remnant.training import run_to_completion

from ..runs import RunFolder, check_files, finished_before, read_result
from ..settings import Settings
from .gpu_scheduler import run_on_gpu
from .one_run import Progress, RunInProgress, Watcher
from .places import Place, WorkerError, open_place
from .processes import Processes

EXECUTION = ("deterministic", "tf32", "steps", "checkpoint_every", "drift")
HERE = "here"
KEPT = "Finished tasks are kept; run the same command again to continue."


@dataclass(frozen=True)
class Plan:
    """What to run and how.

    Args:
        settings: The settings, from `remnant.experiments.resolve`.
        seeds: One run is made for each.
        root: The folder for all runs.
        device: "cpu", "cuda" (all GPUs), a list such as "cuda:0,cuda:2", or "auto" (GPUs if there are any).
        parallel: How many seeds run at once, on each GPU or on the CPU. 0 runs all on each GPU, and one per core on the CPU.
        deterministic: Whether to give bit-equal results on the same machine.
        tf32: Whether to use TensorFloat-32 on GPUs.
        steps: "captured" (CUDA graphs), "eager" (one by one) or "auto" (the fastest).
        checkpoint_every: Epochs between checkpoints; 0 writes them only after each task.
        checkpoint_seconds: The fewest seconds between two checkpoints of a task.
        drift: Whether to record how far the layers drift for the first task.
        on: Where to run: "here", "ray", "ray:HOST:PORT" or "slurm" (see docs/cluster.md).

    Example:
        >>> from remnant.experiments import resolve
        >>> Plan(resolve("permuted-digits", "gpm"), seeds=(0, 1), root=Path("runs")).seeds
        (0, 1)
    """

    settings: Settings
    seeds: tuple[int, ...]
    root: Path
    device: str = "auto"
    parallel: int = 0
    deterministic: bool = False
    tf32: bool = True
    steps: str = "auto"
    checkpoint_every: int = 20
    checkpoint_seconds: float = 60.0
    drift: bool = False
    on: str = HERE

    @property
    def execution(self) -> dict[str, Any]:
        """What resuming needs besides the settings, to continue in the same way."""
        return {name: getattr(self, name) for name in EXECUTION}

    def folder(self, seed: int) -> RunFolder:
        """Finds or creates the run folder of a seed."""
        if self.steps not in STEP_KINDS:
            raise RunError(f"--steps {self.steps}: there is no such kind of steps. Use {', '.join(STEP_KINDS)}.")
        folder = RunFolder.create(self.root, self.settings, seed, execution=self.execution)
        if not folder.new:
            check_files(folder)
        return folder


def pick_devices(names: str) -> list[torch.device]:
    """The devices for `auto`, `cpu`, `cuda`, `cuda:N` or a list of those; RunError if there is no such device."""
    found: dict[torch.device, None] = {}
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    for name in (part.strip() for part in names.split(",")):
        try:
            device = torch.device(automatic if name == "auto" else name)
        except RuntimeError:
            device = torch.device("meta")
        if device.type not in ("cpu", "cuda"):
            raise RunError(f"--device {name}: there is no such device. Use auto, cpu, cuda or cuda:0,cuda:2.")
        if device.type == "cpu":
            found[torch.device("cpu")] = None
            continue
        if not torch.cuda.is_available():
            raise RunError(f"--device {name}: torch {torch.__version__} finds no CUDA device. Use --device cpu.")
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise RunError(f"--device {name}: there are {count} CUDA devices, numbered from 0.")
        chosen = range(count) if device.index is None else (device.index,)
        found |= {torch.device("cuda", index): None for index in chosen}
    if len({device.type for device in found}) > 1:
        raise RunError(f"--device {names}: use either the CPU or GPUs, because they round differently.")
    return list(found)


# By default glibc returns large blocks to the system at once and zeroes every new one, which takes 15 % of AlexNet's step.
# M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD, in bytes.
MALLOC = (-3, 1 << 25), (-1, 1 << 30), (-2, 1 << 26)


def prepare_torch(device: torch.device, *, deterministic: bool, tf32: bool) -> None:
    """Sets the process-wide switches of torch. Call it before the first kernel runs."""
    torch.set_float32_matmul_precision("high" if tf32 and not deterministic else "highest")
    torch.backends.cudnn.allow_tf32 = tf32 and not deterministic
    torch.backends.cudnn.benchmark = False  # it gains next to nothing, and its choice varies from run to run
    # With more workspace cuBLAS splits a small product among many blocks. That fills an idle GPU: it saves 7 % of a step
    # for one AlexNet alone, and costs as much for each of five. The workspace is small even for one run, because a run's
    # rounding must not depend on the runs beside it.
    if os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8") == ":16:8":
        os.environ.setdefault("CUBLASLT_WORKSPACE_SIZE", "128")  # kB, the same size; with more, layers with a bias warn
    if deterministic != torch.are_deterministic_algorithms_enabled():  # setting it loads torch's compiler: seconds
        torch.use_deterministic_algorithms(deterministic)
    if device.type == "cpu":
        torch.set_num_threads(1)  # a second thread slows small models down, a second process does not
        if sys.platform == "linux" and (set_malloc := getattr(ctypes.CDLL(None), "mallopt", None)):
            for option, size in MALLOC:
                set_malloc(option, size)


@dataclass(frozen=True, eq=False)
class Job:
    """Seeds of one plan that share a process and a device: one seed on a CPU, several side by side on a GPU."""

    plan: Plan
    folders: Sequence[RunFolder]

    def __str__(self) -> str:
        return f"Seed{'s' * (len(self.folders) > 1)} {', '.join(str(folder.seed) for folder in self.folders)}"

    def run(self, watch: Watcher, device: torch.device | None = None) -> None:
        """Runs the seeds that are not finished. Without a device, it uses the first one that the plan allows."""
        device = device or pick_devices(self.plan.device)[0]
        prepare_torch(device, deterministic=self.plan.deterministic, tf32=self.plan.tf32)
        if device.type == "cuda":
            torch.cuda.set_device(device)
            run_on_gpu(self.plan, self.folders, device, watch)
            return
        for folder in self.folders:
            with folder.lock():
                if folder.finished:
                    continue
                try:
                    run_to_completion(RunInProgress(self.plan, folder, device, watch).work())
                except SystemExit as error:  # an exit code of 0 would pass for success
                    raise RunError(
                        f"Seed {folder.seed}: the method, network or stream called sys.exit({error.code!r})."
                    ) from error


@dataclass(eq=False)
class _Attempt:
    """A plan that is being run, with its folders and errors so far."""

    plan: Plan
    watch: Watcher
    folders: list[RunFolder] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)

    def receive(self, message: Progress | Exception) -> None:
        if isinstance(message, Progress):
            self.watch(message)
        else:
            self.errors.append(message)


def run(plan: Plan, watch: Watcher | None = None) -> list[RunFolder]:
    """Runs every seed of a plan that is not finished yet. An interrupted seed continues from its checkpoint.

    Args:
        plan: What to run and how.
        watch: A function that is called with a `Progress` after every epoch and task, and with every note.

    Returns:
        The folders of all seeds; `folder.result()["acc"]` is a seed's ACC.

    Raises:
        RunError: If a run cannot start or continue. Folders that this call created are removed if no epoch was completed.

    Example:
        >>> from remnant.experiments import resolve
        >>> plan = Plan(resolve("permuted-digits", "gpm"), seeds=(0,), root=Path("runs"))
        >>> [folder.result()["acc"] for folder in run(plan)]  # doctest: +SKIP
    """
    (outcome,) = run_together([plan], [watch or (lambda progress: None)])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def run_together(
    plans: Sequence[Plan], watchers: Sequence[Watcher], place: Place | None = None
) -> list[list[RunFolder] | Exception]:
    """Runs plans with the same `on`, `device` and `parallel`. One that fails does not stop the others.

    Returns:
        For each plan the folders of its seeds, or its error.
    """
    first, attempts = plans[0], [_Attempt(plan, watch) for plan, watch in zip(plans, watchers, strict=True)]
    if place is None and first.on != HERE:
        with closing(open_place(first)) as place:
            if place.note:
                watchers[0](Progress(first.seeds[0], note=place.note, serious=True))
            return run_together(plans, watchers, place)
    devices = [] if place else pick_devices(first.device)
    for attempt in attempts:
        try:
            for seed in attempt.plan.seeds:
                attempt.folders.append(folder := attempt.plan.folder(seed))
                if folder.finished:
                    read_result(folder)  # a damaged one is not shown
                    folder.clear_checkpoints()  # a kill right after the result leaves them
                    attempt.watch(Progress(seed, note=finished_before(folder)))
        except Exception as error:
            attempt.errors.append(error)
    todo = {each: [folder for folder in each.folders if not folder.finished] for each in attempts if not each.errors}
    gpus = place.gpus if place else sum(device.type == "cuda" for device in devices)
    # A CPU core takes one seed at a time. GPUs share all seeds evenly, and each runs its seeds side by side.
    seeds_per_job = (first.parallel or math.ceil(sum(map(len, todo.values())) / gpus) or 1) if gpus else 1
    jobs: dict[Job, _Attempt] = {}
    for attempt, folders in todo.items():
        parts = math.ceil(len(folders) / seeds_per_job)
        jobs |= {Job(attempt.plan, folders[part::parts]): attempt for part in range(parts)}
    workers = devices if gpus else devices * (first.parallel or os.cpu_count() or 1)
    if min(len(jobs), len(workers)) > 1:
        place = Processes(workers)
    if place or len(jobs) > 1:
        _check_data(todo)
        jobs = {job: attempt for job, attempt in jobs.items() if not attempt.errors}
    if place:
        place.run(list(jobs), lambda job, message: jobs[job].receive(message))
    for job, attempt in jobs.items() if not place else ():  # one after the other, in this process
        try:
            job.run(attempt.watch, devices[0])
        except Exception as error:
            attempt.errors.append(error)
    complete = [not attempt.errors and all(folder.finished for folder in attempt.folders) for attempt in attempts]
    return [each.folders if done else _failure(each) for each, done in zip(attempts, complete, strict=True)]


def _check_data(attempts: Iterable[_Attempt]) -> None:
    """Builds each built-in stream once before the jobs start, so that missing data is one error and not one per job."""
    problems: dict[str, Exception | None] = {}
    for attempt in attempts:
        settings = attempt.plan.settings
        name = f"{settings.benchmark} {settings.stream}"
        if settings.benchmark in BUILT_IN and name not in problems:
            problems[name] = None
            try:
                load_stream(settings.benchmark, seed=attempt.plan.seeds[0], **settings.stream)
            except UserError as error:
                problems[name] = error
        if problem := problems.get(name):
            attempt.errors.append(problem)


def _failure(attempt: _Attempt) -> Exception:
    """Returns the error of a plan. Removes the folders in which no epoch was completed."""
    gone = [str(folder.path) for folder in attempt.folders if not folder.finished]
    for folder in attempt.folders:
        _remove_if_unused(folder, attempt.watch)
    if not attempt.errors:
        return RunError(f"{', '.join(gone)}: the result is gone. Was the folder moved or removed during the run?")
    if len(attempt.errors) == 1 and not isinstance(attempt.errors[0], WorkerError):
        return attempt.errors[0]
    for error in attempt.errors:
        if not isinstance(error, UserError | OSError):  # a bug: the sentence below does not show where
            traceback.print_exception(error)
    texts = {str(error) for error in attempt.errors}
    sentences = sorted(text if text.endswith((".", "?")) else f"{text}." for text in texts)
    return RunError(" ".join([*sentences, KEPT]))


def _remove_if_unused(folder: RunFolder, watch: Watcher) -> None:
    """Removes a folder that this call created if no epoch was completed. Only names one that existed before."""
    with suppress(RunError), folder.lock():  # leaves alone what another process is writing
        if folder.new and not folder.begun:
            folder.remove()
        elif not folder.begun:
            note = f"no epoch was completed in {folder.path}; remove it if you do not need it"
            watch(Progress(folder.seed, note=note))
