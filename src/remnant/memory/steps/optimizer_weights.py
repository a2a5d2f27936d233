"""The weights that one optimizer, or several together, may move: projects their gradients and puts them back."""

import torch
from torch import Tensor

from ..weights.distributed import shards
from .bundle import bundles_of
from .constraint import Constraint


class OptimizerWeights:
    """What the steps of one optimizer act on: its protected weights, small ones in bundles, and its frozen parameters."""

    def __init__(self, constraint: Constraint, parameters: set[Tensor]) -> None:
        self._constraint, self._parameters, self.anchors = constraint, parameters, constraint.anchors
        protection = constraint.protection
        weights = [w for w in protection.weights if not parameters.isdisjoint(w.parameters)]
        self._unstepped = [p for weight in weights for p in weight.parameters if p not in constraint.stepped]
        self.frozen = [p for p in constraint.frozen_parameters if p in parameters]
        self._held = [weight for weight in weights if weight.rank] if self.anchors else []
        self._subspaces = [subspace for weight in weights for subspace in weight.subspaces]
        self._key = self._current()
        for parameter in [p for weight in self._held for p in weight.parameters] + self.frozen:
            self.anchors[parameter] = self.anchors[parameter].to(parameter.device)  # the model may have moved
        self._bundles, self._alone = bundles_of(self._held, protection.weights, self.anchors)

    def _current(self) -> list[object]:
        """A fingerprint of the subspaces, devices and number types. Once it changes, prepared projections are out of date."""
        places = [(weight.view.weight.device, weight.view.weight.dtype) for weight in self._held]
        return [sum([subspace.changes for subspace in self._subspaces]), *places]

    def is_current(self) -> bool:
        return self.anchors is self._constraint.anchors and (not self.anchors or self._key == self._current())

    @torch.no_grad()
    def project(self) -> None:
        if self._unstepped:
            self._constraint.stepped.update(p for p in self._unstepped if p.grad is not None)
            self._unstepped = [p for p in self._unstepped if p.grad is None]
        for bundle in self._bundles:
            bundle.project()
        for weight in self._alone:
            weight.project_gradient()
        if frozen := [p.grad for p in self.frozen if p.grad is not None]:
            torch._foreach_zero_(shards(frozen))

    @torch.no_grad()
    def restore(self, *, along_gradient: bool, only_rows: bool) -> None:
        """Restores W·M = W₀·M.

        Args:
            along_gradient: Whether the step moved along the projected gradients; such weights need not be restored.
            only_rows: Whether the step moved only the rows of an embedding that have a sparse gradient.
        """
        for bundle in self._bundles:
            if not (along_gradient and bundle.projected and self._parameters.issuperset(bundle.parameters)):
                bundle.restore()
        for weight in self._alone:
            grad = weight.view.weight.grad
            if along_gradient and weight.moved_along_gradient(self._parameters):
                continue
            if only_rows and weight.view.one_hot and grad is not None and grad.is_sparse:
                weight.restore_rows(self.anchors, grad._indices()[0])
            else:
                weight.restore(self.anchors)
        if self.frozen and not along_gradient:
            torch._foreach_copy_(shards(self.frozen), shards(self.anchors[p] for p in self.frozen))
