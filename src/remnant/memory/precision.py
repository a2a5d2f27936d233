"""Full float32 products, whatever the user has set: the 10 bits of TF32 would leak 3e-4 of every step."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

FULL = ("none", "ieee", "highest")


class _OneSwitch:
    """The switch of older torch versions, as an object like those of newer ones."""

    fp32_precision = property(
        lambda self: torch.get_float32_matmul_precision(),
        lambda self, value: torch.set_float32_matmul_precision("highest" if value == "ieee" else value),
    )


# Newer torch has one switch per backend, and raises if they are mixed with the older function.
_BACKENDS: Any = torch.backends
_NEW = hasattr(_BACKENDS.cuda.matmul, "fp32_precision")
SWITCHES: list[Any] = [_BACKENDS.cuda.matmul, _BACKENDS.mkldnn.matmul] if _NEW else [_OneSwitch()]
CONVOLUTIONS: list[Any] = [_BACKENDS.cudnn.conv] if hasattr(_BACKENDS.cudnn, "conv") else []


def full_precision_is_set() -> bool:
    return all(str(switch.fp32_precision) in FULL for switch in SWITCHES)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Turns off TF32 and bf16 products and convolutions, and autocast on this device, inside the block."""
    before = [(switch, str(switch.fp32_precision)) for switch in [*SWITCHES, *CONVOLUTIONS]]
    reduced = [(switch, setting) for switch, setting in before if setting not in FULL]
    for switch, _ in reduced:
        switch.fp32_precision = "ieee"
    try:
        with without_autocast(device):
            yield
    finally:
        for switch, setting in reduced:
            switch.fp32_precision = setting


def without_autocast(device: torch.device) -> Any:
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
