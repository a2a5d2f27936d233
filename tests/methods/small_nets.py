"""Small networks and data for them, on which a method is compared with its formula written out, and loops that train it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from remnant.data import Split
from remnant.methods.gpm import GradientProjection
from remnant.models import Network, build
from small_options import announced

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


def data_for(net: Network, seed: int, count: int = 24) -> Split:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *net.input_shape, generator=g, dtype=torch.float64)
    return Split.of(x, torch.randint(0, 3, (count,), generator=g))


def smaller_network(classes: int | Sequence[int] = 3, kind: str = "mlp", **options: Any) -> Network:
    """In float32."""
    usual: dict[str, Any] = {"hidden": (7, 6)} if kind == "mlp" else {"width": 2}
    shape = (8,) if kind == "mlp" else (3, 19, 19)
    return build(kind, input_shape=shape, classes=classes, seed=3, **{**usual, **options})


def smaller_data(
    shape: Sequence[int] = (8,), count: int = 30, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Split:
    g = torch.Generator().manual_seed(seed)
    return Split.of(torch.randn(count, *shape, generator=g).to(dtype), torch.randint(0, 3, (count,), generator=g))


def train(method: Any, split: Split) -> None:
    """One epoch of batches in their order."""
    for part in torch.arange(len(split)).split(8):
        method.step(split.x[part], split.y[part])


def learn_task(method: Any, task: int, split: Split, *, epochs: int, lr: float, shuffled: bool = True) -> None:
    """A whole task, with all that a trainer calls."""
    method.start(task)
    for epoch in range(epochs):
        method.lr.fill_(lr)
        method.network.train()
        method.on_epoch_start(epoch, epochs, len(split) // 8)
        for part in (method.order(split, 8) if shuffled else torch.arange(len(split))).split(8):
            method.step(split.x[part], split.y[part])
        method.on_epoch_end()
    method.network.eval()
    method.finish(task, split)


def beside_gpm(kind: Any, splits: Sequence[Split], **options: Any) -> Iterator[Any]:
    """A method with options that make it GPM, and GPM, each after the same tasks."""
    for each, more in ((kind, options), (GradientProjection, {})):
        method = announced(each(network(), lr=0.125, threshold={"value": 0.8}, samples=1000, **more))
        for task, split in enumerate(splits):
            method.start(task)
            train(method, split)
            torch.manual_seed(0)
            method.finish(task, split)
        yield method
