"""How large the memory of a network can grow: n per protected layer, and GPM_max = Σn² (appendix, "GPM Size")."""

from __future__ import annotations

from typing import Any

import torch

from remnant.memory import GPM
from remnant.models import build

from .variants import Variant

BYTES = 4  # of one entry of a basis, float32
# One input, and whether the tasks share a head, which is then a layer like the others (Sec. 6).
SHAPES: dict[str, tuple[tuple[int, ...], bool]] = {
    "pmnist": ((1, 28, 28), True),
    "permuted-fashion": ((1, 28, 28), True),
    "rotated-mnist": ((1, 28, 28), True),
    "mnist-incremental": ((1, 28, 28), True),
    "permuted-digits": ((1, 8, 8), True),
    "digits-incremental": ((1, 8, 8), True),
    "split-cifar100": ((3, 32, 32), False),
    "cifar100-superclass": ((3, 32, 32), False),
    "five-datasets": ((3, 32, 32), False),
    "split-miniimagenet": ((3, 84, 84), False),
    "split-tinyimagenet": ((3, 64, 64), False),
}


def capacities(variant: Variant) -> dict[str, int]:
    """n of each protected layer, in the order they run; empty for a stream or a network we do not know."""
    network: Any = variant.settings.get("network")
    if variant.benchmark not in SHAPES or not isinstance(network, dict) or "name" not in network:
        return {}
    shape, shared = SHAPES[variant.benchmark]
    options = {key: value for key, value in network.items() if key != "name"}
    try:
        with torch.device("meta"):  # shapes alone: no weights are made
            built = build(network["name"], input_shape=shape, classes=2 if shared else [2], **options)
            memory = GPM(built, 0.5, exclude=[] if shared else ["heads.*"])
    except (ValueError, TypeError):
        return {}
    return {layer.name: layer.capacity for layer in memory.report().layers}


def gpm_max_bytes(variant: Variant) -> int | None:
    """Bytes of a memory that holds every direction of every layer."""
    return sum(n * n for n in capacities(variant).values()) * BYTES or None
