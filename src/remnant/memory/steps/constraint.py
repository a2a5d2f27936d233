"""The constraint W·M = W₀·M on a model's weights, and what a loop that applies gradients itself needs to keep it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from ..record.recorder import Grams
from ..report import LayerCheck, check_still
from ..subspaces.projection import Projection
from ..weights.discovery import Protection
from ..weights.distributed import shards
from ..weights.protected import ProtectedWeight

if TYPE_CHECKING:
    from ..gpm import GPM


@dataclass(eq=False)
class Constraint:
    """Keeps W·M = W₀·M from the second task on, where W₀ are the weights at the start of the task. Frozen ones stay at W₀."""

    protection: Protection
    anchors: dict[Tensor, Tensor] = field(default_factory=dict)  # parameter → W₀; empty in the first task
    stepped: set[Tensor] = field(default_factory=set)  # protected parameters that got a gradient in this task
    optimizers: WeakSet[Optimizer] = field(default_factory=WeakSet)  # those that are attached
    steps: int = 0  # of all attached optimizers in this task
    unsettled: bool = False  # whether optimizers that take turns still have to restore their weights
    no_steps: str = ""  # the reason, while the weights in place are not those to train
    _projected: dict[Tensor, tuple[ref[Tensor], int]] = field(default_factory=dict)  # parameter → gradient, its version
    _soft: tuple[int, bool] = -1, False  # the subspaces' changes, and whether a direction may then move a little

    @contextmanager
    def without_steps(self) -> Iterator[None]:
        """Refuses steps while a recalled network is in place: they would be lost."""
        self.settle()
        self.no_steps = "A recalled task is read-only. Leave the block of memory.recall() first."
        try:
            yield
        finally:
            self.no_steps = ""

    def check_steps(self) -> None:
        if self.no_steps:
            raise RuntimeError(self.no_steps)

    def begin_task(self, anchors: dict[Tensor, Tensor] | None = None) -> None:
        """Starts a task with copies of the parameters as they are now."""
        self.anchors = anchors or {p: p.detach().clone() for p in self.protection.parameters}
        self.stepped, self.steps, self.unsettled = set(), 0, False

    @property
    def frozen_parameters(self) -> list[Tensor]:
        return list(self.protection.frozen.values()) if self.anchors else []

    def mark_projected(self) -> None:
        """Notes that all gradients are projected. Soft directions must not be scaled a second time before the step."""
        weights = self.protection.weights
        changes = sum(subspace.changes for weight in weights for subspace in weight.subspaces)
        if changes != self._soft[0]:  # asked only then, because the answer stalls a GPU
            self._soft = changes, any(weight.is_soft for weight in weights)
        grads = {p: p.grad for p in self.protection.parameters if self._soft[1] and p.grad is not None}
        self._projected = {parameter: (ref(grad), grad._version) for parameter, grad in grads.items()}

    def is_projected(self, parameters: set[Tensor]) -> bool:
        """Whether the gradients of all these parameters were marked as projected and have not changed since."""
        if not self._projected:
            return False
        present = {p: p.grad for p in self.protection.parameters if p in parameters and p.grad is not None}
        marks = ((grad, self._projected.get(parameter)) for parameter, grad in present.items())
        return all(mark is not None and mark[0]() is grad and mark[1] == grad._version for grad, mark in marks)

    def unmark(self, parameters: set[Tensor]) -> None:
        """Forgets the marks of gradients that a step has used."""
        self._projected = {p: mark for p, mark in self._projected.items() if p not in parameters}

    @torch.no_grad()
    def project(self) -> None:
        """Projects the `.grad` of all parameters (Eq. 6–7)."""
        self.check_steps()
        self.stepped.update(p for p in self.protection.parameters if p.grad is not None)
        if self.anchors:
            for weight in self.protection.weights:
                if weight.rank:
                    weight.project_gradient()
        if frozen := [p.grad for p in self.frozen_parameters if p.grad is not None]:
            torch._foreach_zero_(shards(frozen))

    def settle(self) -> None:
        """Restores the weights if optimizers that take turns are in the middle of a cycle. Refused in a recalled network."""
        self.check_steps()
        if self.unsettled:
            self.restore()

    @torch.no_grad()
    def restore(self, copies: Mapping[Tensor, Tensor] | None = None) -> None:
        """Puts all weights back to W·M = W₀·M, or those of a copy of the model (parameter → the copy's parameter)."""
        if not self.anchors:
            return
        for weight in self.protection.weights:
            if weight.rank:
                weight.restore(self.anchors, None if copies is None else [copies[p] for p in weight.parameters])
        if frozen := list(self.protection.frozen.values()):
            held = frozen if copies is None else [copies[p] for p in frozen]
            torch._foreach_copy_(shards(held), shards(self.anchors[p] for p in frozen))
        self.unsettled = self.unsettled and copies is not None

    @torch.no_grad()
    def checks(self, grams: Grams | None = None) -> list[LayerCheck]:
        """Measures each weight's leak, and with the Grams of an old task its drift."""
        if not self.anchors:
            return []
        weights = self.protection.weights
        checks = [w.check(self.anchors, None if grams is None else grams[w.name]) for w in weights]
        return checks + [check_still(name, p, self.anchors[p]) for name, p in self.protection.frozen.items()]


class StepProjector:
    """Projects gradients without an optimizer: ∇W ← ∇W·(I − M·Mᵀ) (Eq. 6–7).

    It does not use `.grad`, so a step can be captured into a CUDA graph. Call `restore` after steps that are not plain SGD,
    and now and then against rounding.

    Args:
        memory: The `GPM` of the model whose gradients are projected.
    """

    def __init__(self, memory: GPM) -> None:
        self._constraint, self._weights = memory._constraint, memory._protection.weights
        self._through_inputs: set[ProtectedWeight] = set()
        self.restore, self.begin_task = self._constraint.restore, self._constraint.begin_task

    @property
    def frozen_parameters(self) -> list[Tensor]:
        """The parameters that `norm`, `bias` and `unsupported` freeze from the second task on."""
        return self._constraint.frozen_parameters

    @torch.no_grad()
    def project(self, gradients: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """Projects a dict from parameters to gradients in place, sets those of frozen parameters to 0, and returns it."""
        self._constraint.stepped.update(gradients)
        if self._constraint.anchors:
            for weight in self._weights:
                if weight.rank and weight not in self._through_inputs:
                    weight.project_among(gradients)
            gradients.update({p: torch.zeros_like(p) for p in self.frozen_parameters if p in gradients})
        return gradients

    @contextmanager
    def through_inputs(self, rows: int) -> Iterator[None]:
        """Projects through the layers' inputs where that is cheaper for batches of `rows` rows: δᵀ·(X·P) = (δᵀ·X)·P.

        Run a forward pass, its backward pass and `project` inside the block; `project` then skips those layers.
        """
        chosen: dict[ProtectedWeight, Any] = {}
        for weight in self._weights:
            layer, *others = (site.module for site in weight.sites)
            plain = type(layer) is nn.Linear and layer.bias is None and "forward" not in vars(layer)
            if plain and not others and weight.rank and rows < weight.view.outputs:
                chosen[weight] = layer
        self._through_inputs = set(chosen)
        try:
            for weight, layer in chosen.items():
                project = weight.projection(weight.view.weight, rows=rows).remove
                layer.forward = lambda x, w=layer.weight, p=project: ProjectedLinear.apply(x, w, p)  # type: ignore
            yield
        finally:
            self._through_inputs = set()
            for layer in chosen.values():
                vars(layer).pop("forward", None)

    def layer_projections(self) -> dict[str, Tensor]:
        """Returns layer → I − M·Mᵀ, for every ungrouped layer with a rank above 0. A step multiplies gradients by it."""
        projections = {}
        for weight in self._weights:
            if weight.rank and weight.view.groups == 1:
                dtype, device = weight.view.weight.dtype, weight.view.weight.device
                projections[weight.name] = Projection(weight.subspaces, 1, dtype, device, form="dense").right[0]
        return projections


class ProjectedLinear(torch.autograd.Function):
    """x·Wᵀ, with a backward pass that projects the gradient of W: δᵀ·(x·P), or (δᵀ·x)·P where outputs are fewer than rows.

    `project` multiplies matrices of the shape (1, any, inputs) by P.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, project: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.project = project
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (delta,), (x, weight) = gradients, ctx.saved_tensors
        needs_x, needs_weight, _ = ctx.needs_input_grad
        gradient = None
        if needs_weight:
            rows, deltas = x.flatten(end_dim=-2)[None], delta.flatten(end_dim=-2).mT
            few = rows.shape[1] < len(weight)
            gradient = deltas @ ctx.project(rows)[0] if few else ctx.project(deltas @ rows)[0]
        return delta @ weight if needs_x else None, gradient, None
