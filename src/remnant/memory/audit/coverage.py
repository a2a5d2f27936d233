"""Finds protected weights that are used in ways their rule does not cover."""

from collections.abc import Collection
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from ..discovery import Protection
from ..layers import has_own_rule
from ..patterns import Selection
from ..protected import ProtectedWeight
from ..record import distributed
from ..record.batches import Forward
from .functional_uses import FunctionalUses
from .rule_check import Call, find_wrong_rules

WAYS_OUT = (
    'or make the memory with unsupported="freeze" to hold the weight fixed after the first task or "free" to accept that. '
    "Nothing was remembered."
)


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
        wrong = find_wrong_rules(self._model, self._sites, self._calls)
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
