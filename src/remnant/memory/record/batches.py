"""Batches: any nest of tensors, a series of them, and a sample of their examples."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import groupby
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def each_batch(batches: Any) -> Iterator[Any]:
    """Yields the batches. A tensor or dict is one batch, anything else is a series of them."""
    if isinstance(batches, tuple) and len({(x.dtype, x.ndim) for x in batches if isinstance(x, Tensor)}) > 1:
        # Taken as two batches, the labels would be remembered as inputs.
        raise TypeError("If this tuple is one batch (x, y), write [(x, y)]. All batches must be alike.")
    if isinstance(batches, Tensor | Mapping):
        yield batches
    elif isinstance(batches, Iterable):
        yield from batches
    else:
        raise TypeError(f"consolidate takes a DataLoader or another iterable of batches, not {type(batches).__name__}.")


def is_numbered(batches: Any) -> bool:
    """Whether these are batches by task, {number of the task: batches}."""
    return isinstance(batches, Mapping) and all(isinstance(key, int) for key in batches)


def map_tensors(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """Applies a function to every tensor of a nest of lists, tuples, dicts and dataclasses."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(item, function) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = (map_tensors(item, function) for item in value)
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if is_dataclass(value) and not isinstance(value, type):
        twin = copy(value)
        for field in fields(value):
            object.__setattr__(twin, field.name, map_tensors(getattr(value, field.name), function))
        return twin
    return value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yields every tensor of such a nest, in the order of `map_tensors`."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple | Mapping):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from tensors_in([getattr(value, field.name) for field in fields(value)])


def all_tensors(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """Every tensor that a model may return, also inside objects of the user's own."""
    if isinstance(value, nn.Module | type | FunctionType | MethodType) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
        return
    slots = (name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()) if hasattr(value, name))
    parts = [*getattr(value, "__dict__", {}).values(), *(getattr(value, name) for name in slots)]
    if isinstance(value, Mapping | list | tuple | set):
        parts = list(value.values() if isinstance(value, Mapping) else value)
    for part in parts:
        yield from all_tensors(part, seen)


def spread_examples(batch: Any, count: int) -> Any:
    """Copies of `count` examples that lie evenly over a batch."""
    size = next((len(x) for x in tensors_in(batch) if x.ndim), 0)
    places = torch.linspace(0, size - 1, min(size, count), device="cpu").long()
    whole = map_tensors(batch, lambda x: x.to_dense() if "sparse" in str(x.layout) else x)
    few = map_tensors(
        whole, lambda x: x[places.to(x.device)] if x.ndim and not x.is_nested and len(x) == size else x.clone()
    )
    layouts = (x.layout for x in tensors_in(batch))
    return map_tensors(few, lambda x: x if (layout := next(layouts)) is x.layout else x.to_sparse(layout=layout))


def mix(examples: Any, others: Any, number: int) -> Any:
    """Replaces some examples by those of the batch with this number (from 0), so that each batch so far is equally likely.

    A batch that is padded to another length replaces all examples or none. A batch with more examples replaces them always.
    """
    draws = np.random.default_rng(number)
    count, theirs_count = (next((len(x) for x in tensors_in(each) if x.ndim), 0) for each in (examples, others))
    kinds = [
        repr(map_tensors(batch, lambda x: (x.shape, x.dtype, x.layout) if x.ndim and len(x) == count else x))
        for batch in (examples, others)
    ]
    if kinds[0] != kinds[1] or any(x.layout is not torch.strided or x.is_nested for x in tensors_in(examples)):
        chosen = theirs_count == count and draws.random() * (number + 1) < 1
        return others if chosen or theirs_count > count else examples
    replaced = torch.from_numpy(draws.random(count) * (number + 1) < 1)
    theirs = tensors_in(others)

    def choose(own: Tensor) -> Tensor:
        other = next(theirs)
        if not own.ndim or len(own) != count:
            return own
        return torch.where(replaced.reshape(-1, *[1] * (own.ndim - 1)).to(own.device), other.to(own.device), own)

    return map_tensors(examples, choose)


def geometric(batch: Any) -> Any:
    """Replaces images by a ramp that doubles along each dimension, whose patches are multiples of one patch."""

    def ramp(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x[:, :1].expand_as(x).clone() if x.ndim > 1 else x
        if x.ndim < 3:
            return x
        smooth = x[:1].mean(dim=tuple(range(2, x.ndim)), keepdim=True) + x.std(correction=0)
        for dim in range(2, x.ndim):
            shape = [-1 if each == dim else 1 for each in range(x.ndim)]
            steps = torch.logspace(0, 1, x.shape[dim], base=2.0, dtype=x.dtype, device=x.device)
            smooth = smooth * steps.reshape(shape)
        return smooth.expand_as(x).clone()

    return map_tensors(batch, ramp)


def blank(batch: Any) -> Any:
    """Replaces inputs by zeros: rows then see nothing but the bias, which tests weights that are read directly."""
    return map_tensors(batch, lambda x: torch.zeros_like(x) if x.is_floating_point() else x)


def sample(batches: Iterable[Any], count: int, seed: int) -> Iterator[Any]:
    """Draws `count` examples evenly from the whole stream, and yields them in batches of the stream's own size."""
    if not count:
        return
    keys = np.random.default_rng(seed)
    # Each example gets a random key and the smallest keys win, so the draw does not depend on the batches.
    chosen: list[tuple[float, int, Any]] = []  # a heap with the largest key first
    most = seen = 0
    for batch in batches:
        size = _examples_in(batch)
        most = max(most, size)
        for index, key in enumerate(keys.random(size)):
            entry = (-float(key), seen + index)
            if len(chosen) < count:
                heapq.heappush(chosen, (*entry, _example(batch, index)))
            elif entry > chosen[0][:2]:
                heapq.heapreplace(chosen, (*entry, _example(batch, index)))
        seen += size
    examples = [example for _, _, example in sorted(chosen, key=lambda entry: entry[1])]
    for _, alike in groupby(examples, key=_shapes):  # batches that are padded to different lengths cannot be mixed
        group = list(alike)
        for start in range(0, len(group), most):
            columns = zip(*(tensors_in(example) for example in group[start : start + most]), strict=True)
            yield map_tensors(group[start], partial(_join_next, columns))


def _example(batch: Any, index: int) -> Any:
    """One example as tensors of length 1. A tensor without dimensions belongs to the whole batch."""
    # It is cloned, because a view would keep the whole batch in RAM.
    return map_tensors(batch, lambda x: x[index : index + 1].clone() if x.ndim else x)


def _join_next(columns: Iterator[tuple[Tensor, ...]], _: Tensor) -> Tensor:
    parts = next(columns)
    return torch.cat(parts) if parts[0].ndim else parts[0]


def _shapes(example: Any) -> Any:
    return list(example) if isinstance(example, Mapping) else None, [x.shape for x in tensors_in(example)]


def _examples_in(batch: Any) -> int:
    lengths = {len(x) for x in tensors_in(batch) if x.ndim}
    if len(lengths) == 1:
        return lengths.pop()
    if not lengths:
        raise TypeError(f"samples= needs batches of tensors to draw from; a {type(batch).__name__} has none.")
    raise TypeError(
        f"samples= draws examples along the first dimension, and the tensors of this batch have {sorted(lengths)} entries "
        "there. Put the examples first in every tensor, or leave samples= out and pass fewer batches."
    )
