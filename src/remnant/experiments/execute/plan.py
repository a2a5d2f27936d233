"""Plans: what to run and how, for new runs and for interrupted ones."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from remnant.accelerated import STEP_KINDS
from remnant.errors import UserError

from ..runs import RunError, RunFolder, check_files, damaged, readable_runs
from ..settings import Settings

LARGEST_SEED = 2**32 - 1
MOST_SEEDS = 10_000
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

    def __post_init__(self) -> None:
        if self.steps not in STEP_KINDS:
            raise RunError(f"--steps {self.steps}: there is no such way to take steps. Use {', '.join(STEP_KINDS)}.")

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
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    if deterministic != torch.are_deterministic_algorithms_enabled():  # setting it loads torch's compiler: seconds
        torch.use_deterministic_algorithms(deterministic)
    if device.type == "cpu":
        torch.set_num_threads(1)  # a second thread slows small models down, a second process does not


def parse_seeds(text: str) -> tuple[int, ...]:
    """Reads `--seeds`: `5` means seeds 0 to 4, `1,3` means these two, `7,` means this one."""
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    try:
        numbers = tuple(int(word) for word in text.removesuffix(",").split(","))
    except ValueError:
        raise RunError(f"--seeds {shown}: write how many (5), or which (1,3).") from None
    if any(number < 0 for number in numbers) or ("," not in text and numbers[0] < 1):
        raise RunError(f"--seeds {shown}: at least one seed is needed, and none may be negative.")
    if max(numbers) > LARGEST_SEED:
        raise RunError(f"--seeds {shown}: a seed is at most {LARGEST_SEED:,}.")
    if "," in text:
        return tuple(dict.fromkeys(numbers))
    if numbers[0] > MOST_SEEDS:  # most likely the number of one seed
        raise RunError(f"--seeds {shown}: these are too many. For the one seed {numbers[0]} write --seeds {shown},")
    return tuple(range(numbers[0]))


def unfinished(path: Path, device: str, parallel: int, **execution: Any) -> tuple[list[Plan], list[str]]:
    """Plans for every run at or below `path` without a result, and a sentence for each that cannot be resumed.

    Seeds with the same settings share a plan. `execution` are options of `Plan` to change; None keeps the run's own.
    """
    found, problems = readable_runs(path)
    if not found and not problems:
        raise RunError(f"{path} holds no run. Run folders are runs/<benchmark>/<method>/<digest>/seed<k>.")
    changed = {name: value for name, value in execution.items() if value is not None}
    groups: dict[tuple[Any, ...], list[RunFolder]] = {}
    for folder in found:
        try:
            if folder.finished:
                folder.clear_checkpoints()  # a kill right after the result leaves them
            else:
                how = {**(folder.execution() or {}), **changed}
                options = tuple((name, how[name]) for name in EXECUTION if name in how)
                groups.setdefault((_root(folder), _settings(folder).digest, options), []).append(folder)
        except RunError as error:
            problems.append(str(error))
    plans = [
        Plan(_settings(runs[0]), tuple(sorted(run.seed for run in runs)), root, device, parallel, **dict(options))
        for (root, _, options), runs in groups.items()
    ]
    return plans, problems


def _settings(folder: RunFolder) -> Settings:
    """The run's settings. Edited ones are refused: they describe another run, which has another folder."""
    try:
        settings = Settings.from_dict(folder.settings)
        digest = settings.digest
    except UserError as error:
        raise RunError(f"{folder.path}/settings.json: {error}") from error
    except (ValueError, TypeError, AttributeError) as error:  # a number where there should be a table
        raise damaged(folder.path / "settings.json", error) from error
    if digest != folder.digest:
        raise RunError(
            f"The settings in {folder.path} are not those the run began with (were they edited?). Restore them, "
            "or start a run with the new ones: remnant run … --set …"
        )
    return settings


def _root(folder: RunFolder) -> Path:
    """The folder of all runs that this one is in."""
    path, relative = folder.path.resolve(), folder.relative_path.parts
    if path.parts[-len(relative) :] != relative:
        here = f"…/{folder.relative_path}"
        raise RunError(f"{folder.path} was moved. A run can only be resumed where it was made, in {here}.")
    return Path(*path.parts[: -len(relative)])
