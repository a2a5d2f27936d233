"""Full float32 products, whatever a user's settings save elsewhere: TF32's 10 bits would leak 3e-4 of every step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

FULL = ("none", "ieee", "highest")


def full_precision_is_set() -> bool:
    return all(_get(knob) in FULL for knob in _knobs())


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No TF32, no bf16 products and no autocast inside."""
    before = [(knob, setting) for knob in _knobs() if (setting := _get(knob)) not in FULL]
    for knob, _ in before:
        _set(knob, None)
    try:
        with without_autocast(device):
            yield
    finally:
        for knob, setting in before:
            _set(knob, setting)


def without_autocast(device: torch.device) -> Any:
    """A step inside an autocast block must not narrow what is projected."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def _knobs() -> list[Any]:
    """Where torch keeps this: one switch a backend, where it has them (mixing them with the old function raises)."""
    backends: Any = torch.backends
    if hasattr(backends.cuda.matmul, "fp32_precision"):
        return [backends.cuda.matmul, backends.mkldnn.matmul]
    return [None]


def _get(knob: Any) -> str:
    return torch.get_float32_matmul_precision() if knob is None else str(knob.fp32_precision)


def _set(knob: Any, setting: str | None) -> None:
    if knob is None:
        torch.set_float32_matmul_precision(setting or "highest")
    else:
        knob.fp32_precision = setting or "ieee"
