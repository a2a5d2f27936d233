"""Small networks in float64 and data for them, on which a method is compared with its formula written out."""

from __future__ import annotations

from typing import Any

import torch

from remnant.data import Split
from remnant.models import Network, build

SHAPES = {"mlp": (12,), "alexnet": (3, 19, 19)}


def network(kind: str = "mlp", classes: Any = (3, 3, 3), **options: Any) -> Network:
    usual: dict[str, Any] = {"hidden": (10, 9)} if kind == "mlp" else {"width": 2, "dropout": (0.0, 0.0)}
    return build(kind, input_shape=SHAPES[kind], classes=classes, seed=7, **{**usual, **options}).double()


def data(kind: str = "mlp", seed: int = 0) -> Split:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(40, *SHAPES[kind], generator=g, dtype=torch.float64)
    if kind == "mlp":
        x[:, 6:] *= 0.2
    return Split.of(x, torch.randint(0, 3, (40,), generator=g))
