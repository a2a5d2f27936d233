"""The batches of a task in any shape: tensors, tuples or dicts; all of them, or a random sample of examples."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Forward = Callable[[nn.Module, Any], object]


def stream(batches: Any) -> Iterator[Any]:
    """Yields the batches. A tensor or dict is one batch, anything else is a series of them."""
    if isinstance(batches, tuple) and len({(x.dtype, x.ndim) for x in batches if isinstance(x, Tensor)}) > 1:
        # Taken as two batches, the labels would be remembered as inputs.
        raise TypeError("If this tuple is one batch (x, y), write [(x, y)]. All batches of a series must be alike.")
    if isinstance(batches, Tensor | Mapping):
        yield batches
    elif isinstance(batches, Iterable):
        yield from batches
    else:
        raise TypeError(f"consolidate takes a DataLoader or another series of batches, not {type(batches).__name__}.")


def call(model: nn.Module, batch: Any) -> object:
    """Passes a tensor as the input, of a tuple the first element, and the entries of a dict by name."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, list | tuple):
        return model(batch[0])
    return model(batch)


def map_tensors(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """Applies a function to every tensor of a nest of lists, tuples and dicts."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(item, function) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = (map_tensors(item, function) for item in value)
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yields every tensor of a nest of lists, tuples and dicts, in the order of `map_tensors`."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple | Mapping):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(item)


def sample(batches: Iterable[Any], count: int, seed: int) -> Iterator[Any]:
    """Draws `count` examples evenly from the whole stream, and yields them in batches of the stream's own size.

    Each example gets a random key and the smallest keys win, so the draw does not depend on the batches.
    """
    if not count:
        return
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
    for _, alike in groupby(examples, key=_shapes):  # batches that are padded to different lengths cannot be mixed
        group = list(alike)
        for start in range(0, len(group), size):
            yield _collate(group[start : start + size])


def _length(batch: Any) -> int:
    first = next(tensors_in(batch), None)
    if first is None or first.ndim == 0:
        raise TypeError(f"samples= needs batches of tensors to draw examples from; a {type(batch).__name__} has none.")
    return len(first)


def _example(batch: Any, index: int) -> Any:
    return map_tensors(batch, lambda x: x[index].clone())  # a view would keep the whole batch alive


def _shapes(example: Any) -> Any:
    return list(example) if isinstance(example, Mapping) else None, [x.shape for x in tensors_in(example)]


def _collate(examples: list[Any]) -> Any:
    columns = zip(*map(tensors_in, examples), strict=True)
    return map_tensors(examples[0], lambda _: torch.stack(next(columns)))
