"""Finds protected weights that are used in ways their rule does not cover: outside their layers, or not as a rule says.

A rule says that outputs depend on [W | b] only through its product with the rows, so a change Δ with Δ·rows = 0 must leave
the output as it is. If a user's rule has the wrong orientation, bias or rows, the output moves.
"""

import copy
from collections.abc import Collection
from contextlib import ExitStack
from math import isfinite, nan
from typing import Any

import torch
from torch import Tensor, nn

from ..discovery import Protection
from ..layers import has_own_rule
from ..patterns import Selection
from ..precision import full_precision
from ..protected import ProtectedWeight, Site
from ..record import distributed
from ..record.batches import Forward, tensors_in
from ..record.recorder import eager_eval, rows_of
from .functional_uses import FunctionalUses

VISIBLE = 0.03  # relative to the effect of a free change of the same size; float32 rounds to less than 1e-5
DRAWS = 3
TINY = 1e-3
WAYS_OUT = (
    'or make the memory with unsupported="freeze" to hold the weight fixed after the first task or "free" to accept that. '
    "Nothing was remembered."
)
Call = tuple[tuple[Any, ...], dict[str, Any]]


class Coverage:
    """Watches the forward passes of a task: the first one for functional uses, and the first call of each user's layer."""

    def __init__(self, model: nn.Module, protection: Protection, selection: Selection) -> None:
        self._model, self._weights = model, protection.weights
        self.uses = FunctionalUses(model, protection, selection)
        # Narrower types round so much that a layer which sums or saturates could look wrong.
        precise = [weight for weight in self._weights if weight.view.weight.dtype in (torch.float32, torch.float64)]
        self._sites = [(weight, site) for weight in precise for site in weight.sites if has_own_rule(site.module)]
        self._calls: dict[nn.Module, Call] = {}

    def watch(self, forward: Forward) -> Forward:
        def keep_call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._calls.setdefault(module, (args, kwargs))

        def watched(model: nn.Module, batch: Any) -> object:
            with ExitStack() as stack:
                for module in {site.module for _, site in self._sites} - self._calls.keys():
                    stack.callback(module.register_forward_pre_hook(keep_call, with_kwargs=True).remove)
                if not self.uses.watched:  # a model treats every batch alike
                    stack.enter_context(self.uses.watching())
                return forward(model, batch)

        return watched

    def find_uncovered(self, stepped: Collection[Tensor]) -> dict[ProtectedWeight, str]:
        """Returns the uncovered weights of all processes, each with a message that says why."""
        wrong = _find_wrong_rules(self._model, self._sites, self._calls)
        outside = self.uses.outside
        found = {
            weight: self._wrong_rule(weight) for weight in self._in_any_process([w in wrong for w in self._weights])
        }
        for weight in self._in_any_process([not outside.keys().isdisjoint(w.parameters) for w in self._weights]):
            # A weight that no step has moved forgets nothing.
            if not stepped or any(parameter in stepped for parameter in weight.parameters):
                found.setdefault(weight, self._used_outside(weight, outside))
        return found

    def _in_any_process(self, flags: list[bool]) -> list[ProtectedWeight]:
        counts = distributed.summed(torch.tensor(flags, dtype=torch.int32)).tolist()
        return [weight for weight, count in zip(self._weights, counts, strict=True) if count]

    def _wrong_rule(self, weight: ProtectedWeight) -> str:
        name, kind = weight.name, type(weight.sites[0].module).__name__
        return (
            f"The rule for {name!r} ({kind}) does not describe the layer: a change of the weight that none of the rule's "
            "rows can see changed the layer's output, so old outputs would move. Is `output_dim` the dimension that counts "
            "the outputs (1 if the weight is stored inputs × outputs), and is each output a row of `rows` times the "
            f"weight, plus `bias`? Correct the rule, exclude {name!r}, {WAYS_OUT}"
        )

    def _used_outside(self, weight: ProtectedWeight, outside: dict[Tensor, str]) -> str:
        shape = weight.view.weight.shape
        functions = [name for parameter, name in outside.items() if parameter in set(weight.parameters)]
        by = f", by torch's {functions[0].strip('_')}()" if functions else ""
        tie = f" (head = nn.Linear({shape[1]}, {shape[0]}, bias=False); head.weight = …)" if len(shape) == 2 else ""
        return (
            f"The weight of {weight.name!r} is also multiplied outside the layer's own forward{by}, with inputs that no "
            "rule sees: old outputs would move although the layer's do not. Call the layer itself or a layer that shares "
            f"its weight{tie} instead of the function, teach GPM the module that does it (register_layer), "
            f"exclude {weight.name!r}, {WAYS_OUT}"
        )


@torch.no_grad()
def _find_wrong_rules(
    model: nn.Module, sites: list[tuple[ProtectedWeight, Site]], calls: dict[nn.Module, Call]
) -> list[ProtectedWeight]:
    """Returns the weights whose rule does not describe their layer. An untestable rule is assumed correct."""
    called = [(weight, site) for weight, site in sites if site.module in calls]
    if not called:
        return []
    with eager_eval(model), full_precision(next(model.parameters()).device):
        return [weight for weight, site in called if _disagrees(weight, site, calls[site.module])]


def _disagrees(weight: ProtectedWeight, site: Site, call: Call) -> bool:
    """Tests one example, whose rows leave most directions free, or the batch if the layer takes nothing smaller."""
    for smaller in (_first_example(call), call):
        try:
            effects = [_effects(weight, site, smaller, draw) for draw in range(DRAWS)]
        except Exception:
            continue  # the layer cannot be called in this way
        of_free, of_unseen = sum(free for free, _ in effects), sum(unseen for _, unseen in effects)
        if of_free > 0 and isfinite(of_unseen):
            return of_unseen > VISIBLE * of_free
    return False


def _effects(weight: ProtectedWeight, site: Site, call: Call, draw: int) -> tuple[float, float]:
    """The output's change per size of a random change of W, and of one that the rows cannot see (nan if there is none)."""
    chunks = list(rows_of(weight, site, *call))
    start = weight.stack({parameter: parameter for parameter in weight.parameters})
    free = torch.randn(start.shape, generator=torch.Generator().manual_seed(draw)).to(start)
    free *= start.square().mean().sqrt().clamp(min=TINY)
    if weight.view.one_hot:
        unseen = free.index_fill(2, torch.cat([chunk.flatten() for chunk in chunks]), 0)
    else:
        unseen = _outside(torch.cat(chunks, dim=1), free)
    if unseen.norm() <= TINY * free.norm():
        return 0.0, nan
    base = _output(site.module, call)

    def effect(change: Tensor) -> float:
        with weight.moved_by(change):
            return float((_output(site.module, call) - base).norm() / change.norm())

    return effect(free), effect(unseen)


def _outside(rows: Tensor, stack: Tensor) -> Tensor:
    """The part of each matrix outside the span of its group's rows."""
    if rows.shape[1] >= rows.shape[2]:
        return torch.zeros_like(stack)  # that many rows span everything, as a rule
    basis = torch.linalg.qr(rows.to(torch.float64).mT)[0]
    wide = stack.to(basis)
    rest: Tensor = wide - (wide @ basis) @ basis.mT
    return rest.to(stack)


def _output(module: nn.Module, call: Call) -> Tensor:
    """All numbers that the layer returns, without changing its buffers or the random state."""
    args, kwargs = copy.deepcopy(call)
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    devices = {tensor.device for tensor in tensors_in((args, kwargs)) if tensor.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=[device.index for device in devices]):
            output = module.forward(*args, **kwargs)
    finally:
        for buffer, before in buffers:
            buffer.copy_(before)
    return torch.cat([x.flatten().double() for x in tensors_in(output) if x.is_floating_point()])


def _first_example(call: Call) -> Call:
    def first(value: Any) -> Any:
        return value[:1] if isinstance(value, Tensor) and value.ndim else value

    return tuple(map(first, call[0])), {name: first(value) for name, value in call[1].items()}
