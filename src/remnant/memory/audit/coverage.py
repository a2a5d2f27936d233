"""Finds protected weights that are used in ways their rule does not cover."""

from collections.abc import Collection

from torch import Tensor, nn

from ..discovery import Protection
from ..errors import ConsolidationError
from ..patterns import Selection
from ..protected import ProtectedWeight
from ..record import distributed
from ..record.batches import Forward
from .functional_uses import FunctionalUses
from .rule_check import RuleCheck

WAYS_OUT = (
    'or make the memory with unsupported="freeze" to hold the weight fixed after the first task or "free" to accept that. '
    "Nothing was remembered."
)


class Coverage:
    """Watches the first forward pass of a task, and treats uncovered weights as `unsupported` says."""

    def __init__(self, model: nn.Module, protection: Protection, selection: Selection, unsupported: str) -> None:
        self._weights, self._unsupported = protection.weights, unsupported
        self._uses = FunctionalUses(model, protection, selection)
        self._rules = RuleCheck(model, protection.weights)

    def watch(self, forward: Forward) -> Forward:
        return self._rules.watch_first_call(self._uses.watch_first_call(forward))

    @property
    def buffers_read(self) -> set[str]:
        return self._uses.buffers_read

    def fixed(self, stepped: Collection[Tensor]) -> list[ProtectedWeight]:
        """The weights that must not move at all (unsupported="freeze")."""
        if self._unsupported != "freeze":
            return []
        return [weight for weight in self._weights if weight in [*self._used_outside(stepped), *self._wrong_rules()]]

    def check(self, stepped: Collection[Tensor]) -> None:
        """Refuses uncovered weights (unsupported="error")."""
        if self._unsupported != "error":
            return
        if wrong := self._wrong_rules():
            name, kind = wrong[0].name, type(wrong[0].sites[0].module).__name__
            raise ConsolidationError(
                f"The rule for {name!r} ({kind}) does not describe the layer: a change of the weight that none of the "
                "rule's rows can see changed the layer's output, so old outputs would move. Is `output_dim` the dimension "
                "that counts the outputs (1 if the weight is stored inputs × outputs), and is each output a row of `rows` "
                f"times the weight, plus `bias`? Correct the rule, exclude {name!r}, {WAYS_OUT}"
            )
        if outside := self._used_outside(stepped):
            weight, shape = outside[0], outside[0].view.weight.shape
            functions = [name for parameter, name in self._uses.outside.items() if parameter in set(weight.parameters)]
            by = f", by torch's {functions[0].strip('_')}()" if functions else ""
            tie = f" (head = nn.Linear({shape[1]}, {shape[0]}, bias=False); head.weight = …)" if len(shape) == 2 else ""
            raise ConsolidationError(
                f"The weight of {weight.name!r} is also multiplied outside the layer's own forward{by}, with inputs that "
                "no rule sees: old outputs would move although the layer's do not. Call the layer itself or a layer that "
                f"shares its weight{tie} instead of the function, teach GPM the module that does it (register_layer), "
                f"exclude {weight.name!r}, {WAYS_OUT}"
            )

    def _used_outside(self, stepped: Collection[Tensor]) -> list[ProtectedWeight]:
        """The weights multiplied outside their layers in any process. One that no step has moved forgets nothing."""
        outside = self._uses.outside
        found = self._in_any_process([not outside.keys().isdisjoint(weight.parameters) for weight in self._weights])
        return [weight for weight in found if not stepped or any(p in stepped for p in weight.parameters)]

    def _wrong_rules(self) -> list[ProtectedWeight]:
        wrong = self._rules.wrong()
        return self._in_any_process([weight in wrong for weight in self._weights])

    def _in_any_process(self, flags: list[bool]) -> list[ProtectedWeight]:
        return [weight for weight, flag in zip(self._weights, distributed.anywhere(flags), strict=True) if flag]
