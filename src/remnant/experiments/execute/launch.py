"""Plans, and how they are carried out: one seed, several CPU processes, or several seeds side by side on a GPU."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from remnant.accelerated import STEP_KINDS
from remnant.errors import RunError, UserError
from remnant.training import run_to_completion

from ..runs import RunFolder, check_files, finished_before
from ..settings import Settings
from .gpu_scheduler import run_on_gpu
from .one_run import Progress, RunInProgress, Watcher

EXECUTION = ("deterministic", "tf32", "steps", "checkpoint_every", "drift")


@dataclass(frozen=True)
class Plan:
    """What to run and how.

    Args:
        settings: from `remnant.experiments.resolve`.
        seeds: one run for each.
        root: the folder of all runs.
        device: auto, cpu, cuda or cuda:N.
        parallel: how many seeds run at the same time; 0 means as many as the device takes.
        deterministic: bit-equal results on the same machine.
        tf32: TensorFloat-32 on GPUs.
        steps: auto (the fastest way), captured (CUDA graphs) or eager (one by one).
        checkpoint_every: epochs between checkpoints; 0 means only after tasks.
        checkpoint_seconds: least seconds between two checkpoints of a task.
        drift: whether to record how far the layers drift for the first task.

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

    @property
    def execution(self) -> dict[str, Any]:
        """What resuming needs beside the settings, to continue in the same way."""
        return {name: getattr(self, name) for name in EXECUTION}

    def folder(self, seed: int) -> RunFolder:
        """The run folder of a seed, made or found."""
        device = pick_device(self.device)
        folder = RunFolder.create(self.root, self.settings, seed, device=device, execution=self.execution)
        if not folder.new:
            check_files(folder)
        return folder


def pick_device(name: str) -> torch.device:
    """The device for `auto`, `cpu`, `cuda` or `cuda:N`; RunError if there is no such device."""
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise RunError(f"--device {name}: there is no such device. Use auto, cpu, cuda or cuda:N.")
    if device.type == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RunError(f"--device {name}: torch {torch.__version__} finds no CUDA device. Use --device cpu.")
    if (index := device.index or 0) >= torch.cuda.device_count():
        raise RunError(f"--device {name}: there are {torch.cuda.device_count()} CUDA devices, numbered from 0.")
    return torch.device("cuda", index)


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
    if plan.steps not in STEP_KINDS:
        raise RunError(f"--steps {plan.steps}: there is no such way to take steps. Use {', '.join(STEP_KINDS)}.")
    device = pick_device(plan.device)
    prepare_torch(device, deterministic=plan.deterministic, tf32=plan.tf32)
    folders: list[RunFolder] = []
    try:
        for seed in plan.seeds:
            folders.append(plan.folder(seed))
        for folder in folders:
            if folder.finished:
                folder.clear_checkpoints()  # a kill right after the result leaves them
                watch(Progress(folder.seed, note=finished_before(folder)))
        unfinished = [folder for folder in folders if not folder.finished]
        if device.type == "cuda":
            run_on_gpu(plan, unfinished, device, watch)
        elif len(unfinished) == 1:
            run_seed(plan, unfinished[0], device, watch)
        else:
            _run_in_processes(plan, unfinished, device, watch)
        if vanished := [str(folder.path) for folder in folders if not folder.finished]:
            raise RunError(
                f"{', '.join(vanished)}: the result is gone. Was the folder moved or removed during the run?"
            )
    except Exception:
        for folder in folders:
            _remove_if_unused(folder, watch)
        raise
    return folders


def _remove_if_unused(folder: RunFolder, watch: Watcher) -> None:
    """Removes a folder that this call made in vain. One that existed before may be wanted, so it is only named."""
    with suppress(RunError), folder.lock():  # leaves alone what another process is writing
        if folder.new and not folder.begun:
            folder.remove()
        elif not folder.begun:
            note = f"no epoch was ever completed in {folder.path}; remove it if you do not need it"
            watch(Progress(folder.seed, note=note))


def run_seed(plan: Plan, folder: RunFolder, device: torch.device, watch: Watcher) -> None:
    """Runs one seed to its end, unless it is finished already."""
    with folder.lock():
        if folder.finished:
            return
        try:
            run_to_completion(RunInProgress(plan, folder, device, watch).work())
        except SystemExit as error:  # an exit code of 0 would pass for success
            raise RunError(
                f"Seed {folder.seed}: the method, network or stream called sys.exit({error.code!r})."
            ) from error


def _run_in_processes(plan: Plan, folders: Sequence[RunFolder], device: torch.device, watch: Watcher) -> None:
    """Runs each seed in a process of its own, `plan.parallel` or one per core at a time."""
    context = multiprocessing.get_context("spawn")
    waiting, running = list(folders), dict[Any, tuple[int, Any]]()
    errors: list[str] = []
    ready: Any
    limit = plan.parallel or os.cpu_count() or 1
    try:
        while waiting or running:
            while waiting and len(running) < limit:
                folder = waiting.pop(0)
                messages, sender = context.Pipe(duplex=False)
                process = context.Process(target=_run_in_child, args=(plan, folder, device, sender))
                with _holding_interrupts():
                    process.start()
                    running[messages] = folder.seed, process
                sender.close()  # so that the child's end is the only one, and ends with it
            for ready in wait(list(running)):
                try:
                    message = ready.recv()
                except (EOFError, OSError):
                    seed, process = running.pop(ready)
                    process.join()
                    errors += [f"Seed {seed}: its process ended with code {process.exitcode}."] * bool(process.exitcode)
                    continue
                if isinstance(message, Progress):
                    watch(message)
                else:
                    errors.append(message)
    finally:
        for _, process in running.values():  # after an interrupt: the interpreter would wait for them
            process.terminate()
    if errors:
        raise RunError(" ".join(sorted(errors)) + " Finished tasks are kept; run the same command again to continue.")


def _run_in_child(plan: Plan, folder: RunFolder, device: torch.device, messages: Connection) -> None:
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        prepare_torch(device, deterministic=plan.deterministic, tf32=plan.tf32)
        run_seed(plan, folder, device, messages.send)
    except RunError as error:  # its message names the run
        messages.send(str(error))
    except (UserError, OSError) as error:
        messages.send(f"Seed {folder.seed}: {error}")
    except Exception as error:  # a bug, most likely in the user's own method: show all of it
        traceback.print_exc()
        messages.send(f"Seed {folder.seed}: {type(error).__name__}: {error}")


@contextmanager
def _holding_interrupts() -> Iterator[None]:
    """Starts children that never see Ctrl-C, which would print tracebacks. The parent gets it afterwards and ends them."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    resource_tracker.ensure_running()  # its own start would let the signal through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exit_with_parent() -> None:
    """Ends this process when its parent is killed. Otherwise it would keep the run's lock and wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
