"""Streams the inputs of a model's layers into Gram matrices, by hooks on the layers."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..errors import ConsolidationError
from ..gram import Counts, Gram
from ..protected import ProtectedWeight, Site
from .batches import Forward, map_tensors

Grams = dict[str, Gram | Counts]


class RowSink(Protocol):
    """Takes the input rows of one weight: (groups, N, n) with the inputs of 1 for biases last, or one-hot indices."""

    def add(self, rows: Tensor, /) -> None: ...


def record(
    model: nn.Module,
    weights: list[ProtectedWeight],
    batches: Iterable[Any],
    forward: Forward,
    examples: Mapping[str, int] | None = None,
) -> tuple[Grams, int]:
    """Returns the Gram matrix of every weight's inputs, and the number of batches. See `record_rows`."""
    grams: Grams = {}
    for weight in weights:
        device = weight.view.weight.device
        size = weight.subspaces[0].capacity
        grams[weight.name] = Counts(size, device) if weight.view.one_hot else Gram(weight.view.groups, size, device)
    return grams, record_rows(model, weights, grams, batches, forward, examples)


def record_rows(
    model: nn.Module,
    weights: list[ProtectedWeight],
    sinks: Mapping[str, RowSink],
    batches: Iterable[Any],
    forward: Forward,
    examples: Mapping[str, int] | None = None,
) -> int:
    """Passes the rows that each weight multiplies to its sink, with the model in eval mode; returns the number of batches.

    `examples`: weight → how many examples of each batch to read, the first ones; all by default.
    """
    device = next(model.parameters()).device
    count = 0
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(eager_eval(model))
        for weight in weights:
            for site in weight.sites:
                stack.callback(_record_at(weight, site, sinks[weight.name], (examples or {}).get(weight.name)).remove)
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


def _record_at(weight: ProtectedWeight, site: Site, sink: RowSink, examples: int | None) -> RemovableHandle:
    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if examples is not None:
            args = tuple(arg[:examples] if isinstance(arg, Tensor) else arg for arg in args)
        for rows in rows_of(weight, site, args, kwargs):
            sink.add(rows)

    return site.module.register_forward_pre_hook(before, with_kwargs=True)


def rows_of(weight: ProtectedWeight, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """Yields the rows of one call of a layer, with the inputs of 1 for the biases, in one or several chunks."""
    view = site.view
    rows = view.rows(*args, **kwargs)
    ones = view.real(*args, **kwargs) if view.real else 1
    for chunk in [rows] if isinstance(rows, Tensor) else rows:
        yield chunk if view.one_hot else _augmented(weight, chunk, site.bias, ones)


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
    for module, _ in modes:
        module.training = False
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        # Setting a stance loads the compiler, which takes seconds. If it is not loaded, nothing is compiled.
        with torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, mode in modes:
            module.training = mode
