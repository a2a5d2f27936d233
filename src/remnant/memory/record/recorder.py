"""Runs a task's batches, or a sample of its examples, through a model and passes on the input rows of its layers."""

import heapq
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import groupby
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant.errors import UserError

from ..gram import Counts, Gram
from ..protected import ProtectedWeight, Site, Weights

Forward = Callable[[nn.Module, Any], object]
Grams = dict[str, Gram | Counts]
# Takes the input rows of one weight: (groups, N, n) with the inputs of 1 for biases last, or one-hot indices.
RowSink = Callable[[Tensor], None]
Sinks = Mapping[ProtectedWeight, RowSink]
Examples = Mapping[str, int]  # weight → how many examples of each batch to read, the first ones; all by default


class ConsolidationError(UserError, RuntimeError):
    """A task's inputs could not be recorded. The memory is as it was before."""


def empty_grams(weights: Weights) -> Grams:
    """Returns a Gram matrix for the inputs of every weight."""
    grams: Grams = {}
    for weight in weights:
        size, device = weight.subspaces[0].capacity, weight.view.weight.device
        grams[weight.name] = Counts(size, device) if weight.view.one_hot else Gram(weight.view.groups, size, device)
    return grams


def record_rows(
    model: nn.Module, sinks: Sinks, batches: Iterable[Any], forward: Forward, examples: Examples | None = None
) -> int:
    """Passes the rows that each weight multiplies to its sink, with the model in eval mode; returns the number of batches."""
    device = next(model.parameters()).device
    count = 0
    with ExitStack() as stack, torch.no_grad(), eager_eval(model):
        for weight, sink in sinks.items():
            for site in weight.sites:
                hook = _hook(weight, site, sink, (examples or {}).get(weight.name))
                stack.callback(site.module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        for batch in batches:
            try:
                forward(model, map_tensors(batch, lambda x: x.to(device, non_blocking=True)))
            except Exception as error:
                error.add_note(
                    "This happened while recording a task's inputs. A batch is passed as model(batch), model(batch[0]) for "
                    "a tuple, model(**batch) for a dict; pass forward=lambda model, batch: … to call yours another way."
                )
                raise
            count += 1
    return count


def _hook(weight: ProtectedWeight, site: Site, sink: RowSink, examples: int | None) -> Callable[..., None]:
    def before_forward(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if examples is not None:
            args = tuple(arg[:examples] if isinstance(arg, Tensor) else arg for arg in args)
        rows = site.view.rows(*args, **kwargs)
        ones = site.view.real(*args, **kwargs) if site.view.real else 1
        for chunk in [rows] if isinstance(rows, Tensor) else rows:
            sink(chunk if site.view.one_hot else _augmented(weight, chunk, site.bias, ones))

    return before_forward


def _augmented(weight: ProtectedWeight, rows: Tensor, bias: int | None, ones: Tensor | int) -> Tensor:
    """Rows as (groups, N, n), with one more column per bias: 1 for the bias of this site, 0 for the others."""
    rows = rows.unsqueeze(0) if rows.ndim == 2 else rows
    groups, inputs = weight.view.groups, weight.view.inputs
    if rows.ndim != 3 or (rows.shape[0], rows.shape[2]) != (groups, inputs):
        raise ConsolidationError(
            f"{weight.name!r} takes {inputs} inputs in {groups} group(s), and was given rows of shape {tuple(rows.shape)}. "
            "Check the batches and, if you registered a rule for the layer, the rule."
        )
    if biases := len(weight.biases):
        rows = F.pad(rows, (0, biases))
        if bias is not None:
            rows[:, :, bias - biases] = ones
    return rows


@contextmanager
def eager_eval(model: nn.Module) -> Iterator[None]:
    """Runs the Python code of every module in eval mode: a compiled or fused forward would skip the hooks."""
    modes = [(module, module.training) for module in model.modules()]
    if any(mode for _, mode in modes):
        model.eval()  # not the flags alone: a model's own eval() may choose another path
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        # Setting a stance loads the compiler, which takes seconds. If it is not loaded, nothing is compiled.
        with torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, mode in modes:  # from the model down, since train() changes the modules below
            if module.training != mode:
                module.train(mode)
        for module, mode in modes:
            module.training = mode


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
    """Draws `count` examples evenly from the whole stream, and yields them in batches of the stream's own size."""
    if not count:
        return
    keys = np.random.default_rng(seed)
    # Each example gets a random key and the smallest keys win, so the draw does not depend on the batches.
    chosen: list[tuple[float, int, Any]] = []  # a heap with the largest key first
    size = seen = 0
    for batch in batches:
        first = next(tensors_in(batch), None)
        if first is None or first.ndim == 0:
            raise TypeError(f"samples= needs batches of tensors to draw from; a {type(batch).__name__} has none.")
        size = max(size, len(first))
        for index, key in enumerate(keys.random(len(first))):
            entry = (-float(key), seen + index)
            if len(chosen) < count:
                heapq.heappush(chosen, (*entry, _example(batch, index)))
            elif entry > chosen[0][:2]:
                heapq.heapreplace(chosen, (*entry, _example(batch, index)))
        seen += len(first)
    examples = [example for _, _, example in sorted(chosen, key=lambda entry: entry[1])]
    for _, alike in groupby(examples, key=_shapes):  # batches that are padded to different lengths cannot be mixed
        group = list(alike)
        for start in range(0, len(group), size):
            yield _collate(group[start : start + size])


def _example(batch: Any, index: int) -> Any:
    return map_tensors(batch, lambda x: x[index].clone())  # a view would keep the whole batch alive


def _shapes(example: Any) -> Any:
    return list(example) if isinstance(example, Mapping) else None, [x.shape for x in tensors_in(example)]


def _collate(examples: list[Any]) -> Any:
    columns = zip(*map(tensors_in, examples), strict=True)
    return map_tensors(examples[0], lambda _: torch.stack(next(columns)))
