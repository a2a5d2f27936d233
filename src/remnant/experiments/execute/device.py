"""The device of a run, and torch's switches for it."""

from __future__ import annotations

import os

import torch

from ..runs import RunError


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
