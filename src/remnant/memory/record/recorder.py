"""Runs a task's batches through a model and passes on the input rows of its layers."""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant.errors import UserError

from ..layers import described_forward
from ..subspaces.gram import Counts, Gram
from ..subspaces.sketch import Sketch, random_vectors
from ..weights.distributed import reshard, whole
from ..weights.protected import ProtectedWeight, Site, Weights
from .batches import map_tensors, tensors_in
from .own_forward import read_calls

Forward = Callable[[nn.Module, Any], object]
Grams = dict[str, Gram | Sketch | Counts]
# Takes the input rows of one weight: (groups, N, n) with the inputs of 1 for biases last, or one-hot indices.
RowSink = Callable[[Tensor], None]
Sinks = Mapping[ProtectedWeight, RowSink]
TARGETS = ("target", "label")  # how the name of an input for targets begins
Examples = Mapping[str, int]  # weight → how many examples of each batch to read, the first ones; all by default


class ConsolidationError(UserError, RuntimeError):
    """A task's inputs could not be recorded. The memory is as it was before."""


def empty_grams(weights: Weights) -> Grams:
    """Returns a Gram matrix for the inputs of every weight."""
    grams: Grams = {}
    random: dict[tuple[int, torch.device], Tensor] = {}  # layers with as many inputs share it
    for weight in weights:
        size, device = weight.subspaces[0].capacity, weight.view.weight.device
        groups = weight.view.groups
        if weight.view.one_hot:
            grams[weight.name] = Counts(size, device)
        elif weight.sketch and size >= 2 * weight.sketch:
            if (size, device) not in random:
                random[size, device] = random_vectors(size, weight.sketch, device)
            grams[weight.name] = Sketch(groups, random[size, device])
        else:
            grams[weight.name] = Gram(groups, size, device)
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
                read = partial(_read_inputs, weight, site, sink, (examples or {}).get(weight.name))
                if described := described_forward(site.module):
                    stack.enter_context(read_calls(site, described, read))
                else:
                    stack.callback(site.module.register_forward_pre_hook(read, with_kwargs=True).remove)
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


@torch.inference_mode(False)  # the sums must not become inference tensors
@torch.no_grad()
def _read_inputs(
    weight: ProtectedWeight,
    site: Site,
    sink: RowSink,
    examples: int | None,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Passes the rows of one call of a layer to the sink. A forward pre-hook calls it with the last three arguments."""
    args, kwargs = map_tensors((args, kwargs), lambda x: x.to_dense() if "sparse" in str(x.layout) else whole(x))
    if any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors_in((args, kwargs)))):
        raise ConsolidationError(
            f"{weight.name!r} is called inside a transform of torch.func (vmap, grad, jvp), where its inputs cannot be "
            "recorded. Pass forward= that calls it with whole batches, or exclude it. Nothing was remembered."
        )
    if examples is not None:
        args = tuple(arg[:examples] if isinstance(arg, Tensor) and arg.ndim else arg for arg in args)
    groups, inputs, biases = weight.view.groups, weight.view.inputs, len(weight.biases)
    found = site.view.rows(*args, **kwargs)
    ones = site.view.row_mask(*args, **kwargs) if site.view.row_mask else 1
    for rows in [found] if isinstance(found, Tensor) else found:
        if site.view.one_hot:
            sink(rows)
            continue
        given = tuple(rows.shape)
        rows = rows.unsqueeze(0) if rows.ndim == 2 else rows
        if rows.ndim != 3 or (rows.shape[0], rows.shape[2]) != (groups, inputs):
            wanted = f"({groups}, N, {inputs})" if groups > 1 else f"(N, {inputs})"
            raise ConsolidationError(
                f"{weight.name!r} takes rows of shape {wanted}, and was given {given}. Check the batches and, if you "
                "registered a rule for the layer, the rule."
            )
        if biases:  # one more column per bias: 1 for the bias of this site, 0 for the others
            rows = F.pad(rows, (0, biases))
            if site.bias is not None:
                rows[:, :, site.bias - biases] = ones
        sink(rows)


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
        reshard(model)  # so that the next forward pass sees changes of the weights
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, mode in modes:  # from the model down, since train() changes the modules below
            if module.training != mode:
                module.train(mode)
        for module, mode in modes:
            module.training = mode


def call(model: nn.Module, batch: Any) -> object:
    """Passes a tensor as the input, of a tuple the first element, and the entries of a dict by name."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, list | tuple):
        return model(batch[0])
    return model(batch)


def inputs_left_out(model: nn.Module, batch: Any) -> list[str]:
    """Names the inputs of a model that `call` may have left out: the batch has more tensors than an input and its target."""
    if not isinstance(batch, list | tuple) or isinstance(model, torch.jit.ScriptModule):
        return []
    more = [item for item in batch[1:] if isinstance(item, Tensor)]
    positional = [x for x in inspect.signature(model.forward).parameters.values() if x.kind <= x.VAR_POSITIONAL]
    inputs = [x.name for number, x in enumerate(positional) if number or x.kind is x.VAR_POSITIONAL]
    takes_target = bool(inputs) and inputs[0].startswith(TARGETS)
    # A second tensor that looks like an input may be a target, or a condition that the model takes if it is given one.
    alike = bool(more) and more[0].is_floating_point() and more[0].ndim > 1
    optional = alike and len(positional) > 1 and positional[1].default is None
    return inputs if len(more) > 1 or (more and takes_target) or optional else []
