"""Full float32 products, whatever the user has set: the 10 bits of TF32 would leak 3e-4 of every step."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

FULL = ("none", "ieee", "highest")


def full_precision_is_set() -> bool:
    return all(_get(switch) in FULL for switch in _switches())


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Turns off TF32 and bf16 products, and autocast on this device, inside the block."""
    before = [(switch, setting) for switch in _switches() if (setting := _get(switch)) not in FULL]
    for switch, _ in before:
        _set(switch, None)
    try:
        with without_autocast(device):
            yield
    finally:
        for switch, setting in before:
            _set(switch, setting)


def without_autocast(device: torch.device) -> Any:
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def _switches() -> list[Any]:
    """Newer torch has one switch per backend, and raises if they are mixed with the older function."""
    backends: Any = torch.backends
    if hasattr(backends.cuda.matmul, "fp32_precision"):
        return [backends.cuda.matmul, backends.mkldnn.matmul]
    return [None]


def _get(switch: Any) -> str:
    return torch.get_float32_matmul_precision() if switch is None else str(switch.fp32_precision)


def _set(switch: Any, setting: str | None) -> None:
    if switch is None:
        torch.set_float32_matmul_precision(setting or "highest")
    else:
        switch.fp32_precision = setting or "ieee"
