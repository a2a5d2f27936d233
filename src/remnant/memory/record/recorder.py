"""Streams a task's layer inputs into Gram matrices: hooks in, batches through, hooks out."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConsolidationError
from ..gram import Counts, Gram
from ..protected import ProtectedWeight, Site
from .batches import Forward, to_device

Grams = dict[str, Gram | Counts]


class RowSink(Protocol):
    """Takes a weight's input rows (groups, N, n), constant inputs of biases behind them; for one-hot inputs, indices."""

    def add(self, rows: Tensor, /) -> None: ...


def record(
    model: nn.Module,
    weights: list[ProtectedWeight],
    batches: Iterable[Any],
    forward: Forward,
    examples: Mapping[str, int] | None = None,
) -> tuple[Grams, int]:
    """The Gram of every weight's inputs over these batches, model in eval mode, and how many batches there were.

    `examples`: of which weights to read only so many examples of a batch, the first.
    """
    grams: Grams = {}
    for weight in weights:
        device = weight.view.weight.device
        size = weight.subspaces[0].capacity
        grams[weight.name] = Counts(size, device) if weight.view.one_hot else Gram(weight.view.groups, size, device)
    return grams, record_rows(model, weights, grams, batches, forward, examples)


def record_rows(
    model: nn.Module,
    weights: list[ProtectedWeight],
    ears: Mapping[str, RowSink],
    batches: Iterable[Any],
    forward: Forward,
    examples: Mapping[str, int] | None = None,
) -> int:
    """Gives the rows that every weight multiplies to its ear, model in eval mode; how many batches there were."""
    device = next(model.parameters()).device
    count = 0
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(evaluating(model))
        stack.enter_context(eager())
        for weight in weights:
            for site in weight.sites:
                stack.callback(_record_at(weight, site, ears[weight.name], (examples or {}).get(weight.name)).remove)
        for batch in batches:
            try:
                forward(model, to_device(batch, device))
            except Exception as error:
                error.add_note(
                    "While remembering a task's inputs. A batch goes to the model as model(batch), model(batch[0]) for a "
                    "tuple, model(**batch) for a dict; pass forward=lambda model, batch: … if yours is called otherwise."
                )
                raise
            count += 1
    return count


def check(grams: Grams) -> None:
    """NaN or inf anywhere in a layer's inputs shows in its Gram."""
    bad = [name for name, gram in grams.items() if not bool(torch.isfinite(gram.matrix()).all())]
    if bad:
        raise ConsolidationError(
            f"Inputs of {', '.join(map(repr, bad))} contain NaN or inf. Nothing was remembered; check the data and the "
            "model (did training diverge?), then consolidate again."
        )


def _record_at(
    weight: ProtectedWeight, site: Site, ear: RowSink, examples: int | None
) -> torch.utils.hooks.RemovableHandle:
    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if examples is not None:
            args = tuple(arg[:examples] if isinstance(arg, Tensor) else arg for arg in args)
        for rows in rows_of(weight, site, args, kwargs):
            ear.add(rows)

    return site.module.register_forward_pre_hook(before, with_kwargs=True)


def rows_of(weight: ProtectedWeight, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """What an ear gets of one call of a layer, whole or in chunks."""
    view = site.view
    rows = view.rows(*args, **kwargs)
    ones = view.real(*args, **kwargs) if view.real else 1
    for chunk in [rows] if isinstance(rows, Tensor) else rows:
        yield chunk if view.one_hot else _augmented(weight, chunk, site.bias, ones)


def _augmented(weight: ProtectedWeight, rows: Tensor, which: int | None, ones: Tensor | int) -> Tensor:
    """Rows as (groups, N, n), with the constant input 1 of this site's bias behind them."""
    rows = rows.unsqueeze(0) if rows.ndim == 2 else rows
    wanted = (weight.view.groups, weight.view.inputs)
    if rows.ndim != 3 or (rows.shape[0], rows.shape[2]) != wanted:
        raise ConsolidationError(
            f"{weight.name!r} takes {wanted[1]} inputs in {wanted[0]} group(s), and was given rows of shape "
            f"{tuple(rows.shape)}. See to what the batches hold and, where you registered the layer's rule, to that."
        )
    biases = len(weight.biases)
    if biases:
        rows = F.pad(rows, (0, biases))
        if which is not None:
            rows[:, :, which - biases] = ones
    return rows


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode, then each module's own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def eager() -> Iterator[None]:
    """Runs the Python of every module: a compiled or fused forward would pass the hooks by."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        # Setting a stance loads the compiler, which takes seconds; where it is not loaded, nothing is compiled.
        with torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
