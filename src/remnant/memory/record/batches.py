"""A task's batches in whatever shape a loop has them: tensors, tuples, dicts; all of them or a random few examples."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Forward = Callable[[nn.Module, Any], object]


def stream(batches: Any) -> Iterator[Any]:
    """One tensor or dict is one batch; anything else is a series of them."""
    if isinstance(batches, tuple) and len({(x.dtype, x.ndim) for x in batches if isinstance(x, Tensor)}) > 1:
        # As two batches, labels would be remembered for inputs.
        raise TypeError("Is this tuple one batch (x, y)? Then write [(x, y)]; a series of batches has them all alike.")
    if isinstance(batches, Tensor | Mapping):
        yield batches
    elif isinstance(batches, Iterable):
        yield from batches
    else:
        raise TypeError(f"consolidate takes a DataLoader or another series of batches, not {type(batches).__name__}.")


def call(model: nn.Module, batch: Any) -> object:
    """A tensor is the input, a tuple's first element is, a dict's entries are the forward's arguments by name."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, list | tuple):
        return model(batch[0])
    return model(batch)


def to_device(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor of a nest of lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def sample(batches: Iterable[Any], count: int, seed: int) -> Iterator[Any]:
    """`count` examples drawn evenly from the whole stream, in batches of the stream's own size.

    Each example gets a random key and the smallest keys win, so the draw does not depend on how examples are batched.
    """
    if not count:
        return  # a rank whose share is none
    keys = np.random.default_rng(seed)
    chosen: list[tuple[float, int, Any]] = []  # a heap with the largest key first
    size = seen = 0
    for batch in batches:
        length = _length(batch)
        size = max(size, length)
        for index, key in enumerate(keys.random(length)):
            entry = (-float(key), seen + index)
            if len(chosen) < count:
                heapq.heappush(chosen, (*entry, _example(batch, index)))
            elif entry > chosen[0][:2]:
                heapq.heapreplace(chosen, (*entry, _example(batch, index)))
        seen += length
    examples = [example for _, _, example in sorted(chosen, key=lambda entry: entry[1])]
    for _, alike in groupby(examples, key=_shapes):  # batches padded to their own length cannot be mixed
        group = list(alike)
        for start in range(0, len(group), size):
            yield _collate(group[start : start + size])


def _length(batch: Any) -> int:
    first = _first_tensor(batch)
    if first is None or first.ndim == 0:
        raise TypeError(f"samples= needs batches of tensors to draw examples from; a {type(batch).__name__} has none.")
    return len(first)


def _first_tensor(batch: Any) -> Tensor | None:
    if isinstance(batch, Tensor):
        return batch
    values: Iterable[Any] = ()
    if isinstance(batch, Mapping):
        values = batch.values()
    elif isinstance(batch, Sequence) and not isinstance(batch, str):
        values = batch
    return next((found for value in values if (found := _first_tensor(value)) is not None), None)


def _example(batch: Any, index: int) -> Any:
    if isinstance(batch, Tensor):
        return batch[index].clone()  # not a view: it would keep its whole batch alive
    if isinstance(batch, Mapping):
        return {key: _example(value, index) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return tuple(_example(value, index) for value in batch)
    return batch


def _shapes(example: Any) -> Any:
    if isinstance(example, Tensor):
        return example.shape
    if isinstance(example, Mapping):
        return [(key, _shapes(value)) for key, value in example.items()]
    return [_shapes(value) for value in example] if isinstance(example, tuple) else None


def _collate(examples: list[Any]) -> Any:
    first = examples[0]
    if isinstance(first, Tensor):
        return torch.stack(examples)
    if isinstance(first, Mapping):
        return {key: _collate([example[key] for example in examples]) for key in first}
    if isinstance(first, tuple):
        return tuple(_collate([example[place] for example in examples]) for place in range(len(first)))
    return first
