"""What a step changes, a captured step's warm-up must put back and a checkpoint must hold: nothing may hide elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from remnant.data import Split
from remnant.methods import METHODS, Method
from remnant.models import Network, build
from small_options import OPTIONS

SHAPE = (3, 19, 19)


def learner(method: str, norm: str = "batch", lr: float = 0.05) -> Method:
    network: Network = build("alexnet", input_shape=SHAPE, classes=(3, 3), seed=1, width=2, norm=norm)
    torch.manual_seed(0)
    return METHODS[method](network, lr=lr, **OPTIONS.get(method, {}))


def data(count: int = 40, seed: int = 0) -> Split:
    g = torch.Generator().manual_seed(seed)
    return Split.of(torch.randn(count, *SHAPE, generator=g), torch.randint(0, 3, (count,), generator=g))


def found(thing: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that hangs on an object, however deep, with the way to it."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield path, thing
    elif isinstance(thing, Mapping):
        for key, value in thing.items():
            yield from found(value, f"{path}[{key if isinstance(key, str) else '…'}]", seen)
    elif isinstance(thing, list | tuple | set):
        for number, value in enumerate(thing):
            yield from found(value, f"{path}[{number}]", seen)
    elif hasattr(thing, "__dict__") and not isinstance(thing, type):
        yield from found(vars(thing), path, seen)


@pytest.mark.parametrize("norm", ["batch", "running"])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_all_that_a_step_changes_is_among_its_tensors_and_in_its_state(name: str, norm: str) -> None:
    method, split = learner(name, norm), data()
    for task in range(1 if name == "multitask" else 2):
        method.start(task)
        method.on_epoch_start(0, 2, 5)
        for part in torch.arange(40).split(8):
            method.step(split.x[part], split.y[part])
        if task == 0:
            method.finish(task, split)
    tensors = dict(found(method, name, set()))
    before = {path: tensor.detach().clone() for path, tensor in tensors.items()}
    method.step(split.x[:8], split.y[:8])
    changed = {path: tensor for path, tensor in tensors.items() if not torch.equal(tensor.detach(), before[path])}
    assert len(changed) >= 6  # five layers and a head
    put_back = {tensor.data_ptr() for tensor in method.step_tensors()}
    kept = {tensor.data_ptr() for _, tensor in found(method.state_dict(), "", set())}
    assert [path for path, tensor in changed.items() if tensor.data_ptr() not in put_back] == []
    assert [path for path, tensor in changed.items() if tensor.data_ptr() not in kept] == []
