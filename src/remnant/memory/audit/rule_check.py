"""Does a layer do what its rule says? Asked of rules that users register, on an example of the task.

A rule says that outputs depend on [W | b] through its product with the rows alone. So a change Δ with Δ·rows = 0 must leave
the output where it is, however the layer goes on from there. With another orientation of the weight, a scaled bias or rows
of something else it does not, and what is remembered would protect nothing.
"""

from __future__ import annotations

import copy
from math import isfinite, nan
from typing import Any

import torch
from torch import Tensor, nn

from ..layers.registry import has_own_rule
from ..precision import full_precision
from ..protected import ProtectedWeight, Site
from ..record.batches import Forward, tensors_in
from ..record.recorder import eager, evaluating, rows_of

SEEN = 0.03  # of what a free change of the same size does; float32 rounds to less than 1e-5 of it
DRAWS = 3
TINY = 1e-3
Call = tuple[tuple[Any, ...], dict[str, Any]]


class RuleCheck:
    """Keeps what layers with a user's rule are called with first, and compares each with its rule."""

    def __init__(self, model: nn.Module, weights: list[ProtectedWeight]) -> None:
        self._model = model
        # Narrower types round so much that a layer which sums or saturates could look wrong.
        precise = [weight for weight in weights if weight.view.weight.dtype in (torch.float32, torch.float64)]
        self._sites = [(w, site) for w in precise for site in w.sites if has_own_rule(site.module)]
        self._calls: dict[nn.Module, Call] = {}

    def in_first_call(self, forward: Forward) -> Forward:
        """`forward`, listened to until each layer was called."""

        def listening(model: nn.Module, batch: Any) -> object:
            modules = {site.module for _, site in self._sites} - self._calls.keys()
            hooks = [module.register_forward_pre_hook(self._keep, with_kwargs=True) for module in modules]
            try:
                return forward(model, batch)
            finally:
                for hook in hooks:
                    hook.remove()

        return listening

    def _keep(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._calls.setdefault(module, (args, kwargs))

    @torch.no_grad()
    def wrong(self) -> list[ProtectedWeight]:
        """Weights whose rule does not describe the layer. Where that cannot be told (see concepts.md) it is taken to."""
        with evaluating(self._model), eager(), full_precision(next(self._model.parameters()).device):
            return [w for w, site in self._sites if site.module in self._calls and self._disagrees(w, site)]

    def _disagrees(self, weight: ProtectedWeight, site: Site) -> bool:
        """On one example, whose rows leave most directions free; on the batch, if the layer takes no less."""
        for call in (_first_example(self._calls[site.module]), self._calls[site.module]):
            try:
                effects = [_effects(weight, site, call, draw) for draw in range(DRAWS)]
            except Exception:
                continue  # a layer may refuse anything about this question; then it stays open
            of_free, of_unseen = sum(free for free, _ in effects), sum(unseen for _, unseen in effects)
            if of_free > 0 and isfinite(of_unseen):
                return of_unseen > SEEN * of_free
        return False


def _effects(weight: ProtectedWeight, site: Site, call: Call, draw: int) -> tuple[float, float]:
    """How much a random change moves the output for its size, and how much one that the rows cannot see; nan if none is."""
    args, kwargs = call
    chunks = list(rows_of(weight, site, args, kwargs))
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
    """What remains of each matrix outside the span of its group's rows."""
    if rows.shape[1] >= rows.shape[2]:
        return torch.zeros_like(stack)  # as a rule they span everything
    basis = torch.linalg.qr(rows.to(torch.float64).mT)[0]
    wide = stack.to(basis)
    rest: Tensor = wide - (wide @ basis) @ basis.mT
    return rest.to(stack)


def _output(module: nn.Module, call: Call) -> Tensor:
    """All numbers that the layer gives; it is left as it was, and whatever it draws at random it draws again next time."""
    args, kwargs = copy.deepcopy(call)
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    devices = {tensor.device for tensor in tensors_in((args, kwargs)) if tensor.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=[device.index for device in devices]):
            given = module.forward(*args, **kwargs)
    finally:
        for buffer, before in buffers:
            buffer.copy_(before)
    return torch.cat([x.flatten().double() for x in tensors_in(given) if x.is_floating_point()])


def _first_example(call: Call) -> Call:
    def first(value: Any) -> Any:
        return value[:1] if isinstance(value, Tensor) and value.ndim else value

    return tuple(map(first, call[0])), {name: first(value) for name, value in call[1].items()}
