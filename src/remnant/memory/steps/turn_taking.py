"""Optimizers that train parts of the same weights, such as one for a weight and one for its bias, and take turns."""

from weakref import WeakKeyDictionary, WeakSet

from torch import Tensor
from torch.optim import Optimizer

from .constraint import Constraint
from .optimizer_weights import OptimizerWeights


class TurnTaking:
    """Projects at the first step of a cycle and restores after the last one, instead of doing both for every optimizer.

    In a cycle, each optimizer steps once. The first cycle of a task shows whether they take turns. If one of them steps twice
    in a cycle or is left out (a gradient scaler may skip it), every step restores from then on. Within a cycle W·M = W₀·M does
    not hold yet, so every method of the memory that reads the weights restores them first.
    """

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint
        self._trained: WeakKeyDictionary[Optimizer, set[Tensor]] = WeakKeyDictionary()
        self._start_watching()

    def _start_watching(self) -> None:
        """Forgets the order of the optimizers, and finds those that share a weight."""
        self._anchors = self._constraint.anchors
        owners: dict[Tensor, list[Optimizer]] = {}
        for optimizer, parameters in self._trained.items():
            for parameter in parameters:
                owners.setdefault(parameter, []).append(optimizer)
        self._sharing: WeakSet[Optimizer] = WeakSet()
        for weight in self._constraint.protection.weights:
            if len(together := {optimizer for p in weight.parameters for optimizer in owners.get(p, ())}) > 1:
                self._sharing.update(together)
        self._weights: OptimizerWeights | None = None  # all that they train, once they take turns
        self._projected: dict[Tensor, tuple[int, int]] = {}  # their gradients, as the first step of the cycle left them
        self._stepped: set[int] = set()  # the ids of those that stepped in this cycle
        self._first = 0  # the id of the one that begins each cycle
        self._given_up = False

    def join(self, optimizer: Optimizer, parameters: set[Tensor]) -> None:
        self._constraint.settle()
        self._trained[optimizer] = parameters
        self._start_watching()

    def leave(self, optimizer: Optimizer) -> None:
        self._constraint.settle()
        self._trained.pop(optimizer, None)
        self._start_watching()

    def end_turns(self) -> None:
        """Lets every step restore its weights, until the next task."""
        self._constraint.settle()
        self._weights, self._stepped, self._given_up = None, set(), True

    def before_step(self, optimizer: Optimizer) -> bool:
        """Returns whether the gradients of an optimizer have been projected with the others' and are still the same."""
        if self._anchors is not self._constraint.anchors:
            self._start_watching()
        if optimizer not in self._sharing:
            return False
        if id(optimizer) in self._stepped or (self._weights and not self._stepped and id(optimizer) != self._first):
            self.end_turns()
        if self._weights is None:
            return False
        if self._stepped:
            return all(self._projected.get(p) == _version(p) for p in self._trained[optimizer])
        if not self._weights.is_current():
            self._weights = self._all_weights()
        self._weights.project()
        self._projected = {p: _version(p) for each in self._sharing for p in self._trained[each]}
        return True

    def after_step(self, optimizer: Optimizer) -> bool:
        """Returns whether the weights of an optimizer are restored at the end of the cycle, or have just been."""
        if self._given_up or optimizer not in self._sharing:
            return False
        self._first = self._first or id(optimizer)
        self._stepped.add(id(optimizer))
        last, take_turns = len(self._stepped) >= len(self._sharing), self._weights is not None
        self._constraint.unsettled = take_turns and not last
        if last:
            self._stepped = set()
            if self._weights:
                self._weights.restore(along_gradient=False, only_rows=False)
            else:
                self._weights = self._all_weights()
        return take_turns

    def _all_weights(self) -> OptimizerWeights:
        return OptimizerWeights(self._constraint, set().union(*(self._trained[each] for each in self._sharing)))


def _version(parameter: Tensor) -> tuple[int, int]:
    """Changes when the gradient is replaced or changed in place."""
    return id(parameter.grad), -1 if parameter.grad is None else parameter.grad._version
