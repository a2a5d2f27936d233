"""Checks the rules that users register against their layers, on an example of the task.

A rule says that outputs depend on [W | b] only through its product with the rows, so a change Δ with Δ·rows = 0 must leave
the output as it is. If the rule has the wrong orientation, bias or rows, the output moves.
"""

import copy
from math import isfinite, nan
from typing import Any

import torch
from torch import Tensor, nn

from ..precision import full_precision
from ..protected import ProtectedWeight, Site
from ..record.batches import tensors_in
from ..record.recorder import eager_eval, rows_of

VISIBLE = 0.03  # relative to the effect of a free change of the same size; float32 rounds to less than 1e-5
DRAWS = 3
TINY = 1e-3
Call = tuple[tuple[Any, ...], dict[str, Any]]


@torch.no_grad()
def find_wrong_rules(
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
