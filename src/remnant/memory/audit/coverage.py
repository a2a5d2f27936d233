"""Protected weights that a forward pass shows not to be: multiplied where no rule sees it, or not as their rule says."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor, nn

from ..discovery import Protection, Selection
from ..errors import ConsolidationError
from ..protected import ProtectedWeight
from ..record import distributed
from ..record.batches import Forward
from .functional_uses import Uses
from .rule_check import RuleCheck

ACCEPT = (
    'or make the memory with unsupported="freeze" to hold the weight fixed after the first task or "free" to accept that. '
    "Nothing was remembered."
)


class Coverage:
    """Watches the first forward pass of a task, and settles as `unsupported` says what no rule covers."""

    def __init__(self, model: nn.Module, plan: Protection, selection: Selection, unsupported: str) -> None:
        self._weights, self._unsupported = plan.weights, unsupported
        self._uses, self._rules = Uses(model, plan, selection), RuleCheck(model, plan.weights)

    def watch(self, forward: Forward) -> Forward:
        return self._rules.in_first_call(self._uses.in_first_call(forward))

    @property
    def buffers_read(self) -> set[str]:
        return self._uses.read

    def fixed(self, stepped: Collection[Tensor]) -> list[ProtectedWeight]:
        """Those that must not move at all (unsupported="freeze")."""
        if self._unsupported != "freeze":
            return []
        return [weight for weight in self._weights if weight in [*self._outside(stepped), *self._misread()]]

    def check(self, stepped: Collection[Tensor]) -> None:
        """Refuses them (unsupported="error")."""
        if self._unsupported != "error":
            return
        if misread := self._misread():
            name, kind = misread[0].name, type(misread[0].sites[0].module).__name__
            raise ConsolidationError(
                f"The rule for {name!r} ({kind}) does not describe the layer: a change of the weight that none of the "
                "rule's rows can see changed the layer's output, so old outputs would move. Is `output_dim` the dimension "
                "that counts the outputs (1 if the weight is stored inputs × outputs), and is each output a row of `rows` "
                f"times the weight, plus `bias`? Correct the rule, exclude {name!r}, {ACCEPT}"
            )
        if outside := self._outside(stepped):
            weight, shape = outside[0], outside[0].view.weight.shape
            functions = [name for parameter, name in self._uses.outside.items() if parameter in set(weight.parameters)]
            how = f", by torch's {functions[0].strip('_')}()" if functions else ""
            say = f" (head = nn.Linear({shape[1]}, {shape[0]}, bias=False); head.weight = …)" if len(shape) == 2 else ""
            raise ConsolidationError(
                f"The weight of {weight.name!r} is also multiplied outside the layer's own forward{how}, with inputs that "
                "no rule sees: old outputs would move although the layer's do not. Call the layer itself or a layer that "
                f"shares its weight{say} in place of the function, teach GPM the module that does it (register_layer), "
                f"exclude {weight.name!r}, {ACCEPT}"
            )

    def _outside(self, stepped: Collection[Tensor]) -> list[ProtectedWeight]:
        """Multiplied outside their layers, on any rank. One that no step has moved forgets nothing."""
        outside = self._uses.outside
        found = self._anywhere([not outside.keys().isdisjoint(weight.parameters) for weight in self._weights])
        return [weight for weight in found if not stepped or any(p in stepped for p in weight.parameters)]

    def _misread(self) -> list[ProtectedWeight]:
        wrong = self._rules.wrong()
        return self._anywhere([weight in wrong for weight in self._weights])

    def _anywhere(self, flags: list[bool]) -> list[ProtectedWeight]:
        return [weight for weight, so in zip(self._weights, distributed.anywhere(flags), strict=True) if so]
