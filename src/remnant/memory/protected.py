"""One weight under protection: its subspaces, and the two moves that keep W·M where the task found it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .layers.registry import LayerView
from .precision import full_precision, without_autocast
from .projection import Projection
from .subspace import AxisSubspace, Subspace

Anchors = Mapping[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Site:
    """A module that multiplies the weight: where rows come from, and which of the weight's biases it adds."""

    module: nn.Module
    view: LayerView
    bias: int | None


@dataclass(frozen=True, eq=False)
class Bias:
    """A bias, or the piece of it that goes with one weight."""

    parameter: Tensor
    part: tuple[int, int] | None

    def of(self, tensor: Tensor) -> Tensor:
        return tensor if self.part is None else tensor[slice(*self.part)]


class ProtectedWeight:
    """A weight, the biases that go with it, and what is remembered of their inputs.

    A bias is the weight of an input that is always 1: with biases the matrices are [W | b…], one more input each.
    """

    def __init__(self, name: str, view: LayerView, sites: list[Site], biases: list[Bias]) -> None:
        self.name, self.view, self.sites, self.biases = name, view, sites, biases
        kind = AxisSubspace if view.one_hot else Subspace
        weight = view.weight
        dtype = torch.promote_types(weight.dtype, torch.float32)
        capacity = view.inputs + len(biases)
        self.subspaces = [kind(capacity, dtype=dtype, device=weight.device) for _ in range(view.groups)]
        self.added: list[int] = []  # directions per task, all groups together
        self._projections: dict[tuple[bool, bool], Projection] = {}
        self._of_rows: dict[int, Projection] = {}
        self._changes = 0  # of the subspaces, when these were made

    @property
    def capacity(self) -> int:
        return sum(subspace.capacity for subspace in self.subspaces)

    @property
    def rank(self) -> int:
        return sum(subspace.rank for subspace in self.subspaces)

    @property
    def parameters(self) -> list[Tensor]:
        return [self.view.weight, *(bias.parameter for bias in self.biases)]

    def adopt(self, subspaces: list[Subspace], added: list[int]) -> None:
        """Takes grown or loaded subspaces in place of the present ones."""
        self.subspaces, self.added = subspaces, added
        self._projections, self._of_rows = {}, {}

    def project_gradient(self) -> None:
        """Eq. 6–7: ∇W ← ∇W − (∇W·M)·Mᵀ, in `.grad`."""
        grads = [parameter.grad for parameter in self.parameters]
        if all(grad is None for grad in grads) or any(grad is not None and grad.is_sparse for grad in grads):
            return  # a sparse gradient is left to `restore`, which is exact by itself
        tensors = [torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters, grads, strict=True)]
        with without_autocast(self.view.weight.device):
            self._change(tensors, lambda stack: self._projection(stack).remove_(stack))

    def project_among(self, gradients: dict[Tensor, Tensor]) -> None:
        """The same for gradients held apart from `.grad`, by parameter."""
        if self.biases:
            missing = {p: torch.zeros_like(p) for p in self.parameters if p not in gradients}
            tensors = [gradients.get(p, missing.get(p, p)) for p in self.parameters]
            self._change(tensors, lambda stack: self._projection(stack).remove_(stack))
        elif (gradient := gradients.get(self.view.weight)) is not None:
            stack = self._as_it_lies([gradient])
            left = self.view.tensor(self._projection(stack).remove(stack), channels_last=self._channels_last)
            gradients[self.view.weight] = left.to(gradient.dtype)

    def moved_along_gradient(self, stepped: set[Tensor]) -> bool:
        """Whether a step of these parameters along their gradients moves the weight and its biases as projected."""
        return all(p in stepped and p.grad is not None and not p.grad.is_sparse for p in self.parameters)

    def restore(self, anchors: Anchors) -> None:
        """W ← W₀ + (W − W₀)·(I − M·Mᵀ): W·M = W₀·M again, whatever the optimiser did.

        Written with the difference to W₀ rather than with C₀ = W₀·M: rounding then is relative to what the task has
        learnt, not to the whole weight.
        """

        def put_back(stack: Tensor) -> Tensor:
            projection = self._projection(stack, hard=True)
            with full_precision(stack.device):
                start = self._as_it_lies([anchors[parameter] for parameter in self.parameters])
                return projection.restore_(stack, start.to(stack.dtype))

        self._change(list(self.parameters), put_back)

    def difference(self, anchors: Anchors) -> Tensor:
        """W − W₀ as a stack, biases included."""
        return self._stack(list(self.parameters)) - self.stack(anchors)

    def stack(self, anchors: Anchors) -> Tensor:
        """W₀, biases included."""
        return self._stack([anchors[parameter] for parameter in self.parameters])

    def leak(self, anchors: Anchors) -> tuple[Tensor, Tensor, Tensor]:
        """‖(W − W₀)·M‖, ‖W − W₀‖ and ‖W‖."""
        now = self._as_it_lies(list(self.parameters))
        moved = now - self._as_it_lies([anchors[parameter] for parameter in self.parameters])
        with full_precision(moved.device):
            inside = moved - self._projection(moved, hard=True).remove(moved)
        return inside.norm(), moved.norm(), now.norm()

    @contextmanager
    def moved_by(self, change: Tensor) -> Iterator[None]:
        """Within it the weight and its biases differ by a stack; then they are what they were, to the bit."""
        before = [parameter.detach().clone() for parameter in self.parameters]
        weight, *biases = (parameter.detach() for parameter in self.parameters)
        inputs = self.view.inputs
        try:
            weight.add_(self.view.tensor(change[:, :, :inputs]))
            for column, (bias, tensor) in enumerate(zip(self.biases, biases, strict=True), start=inputs):
                bias.of(tensor).add_(change[:, :, column].reshape(-1))
            yield
        finally:
            for parameter, value in zip(self.parameters, before, strict=True):
                parameter.detach().copy_(value)

    @property
    def dense_projection(self) -> Tensor:
        """I − M·Mᵀ."""
        weight = self.view.weight
        return Projection(self.subspaces, 1, weight.dtype, weight.device, form="dense").right[0]

    def projection_of_rows(self, rows: int) -> Projection:
        """For as many rows of input in place of the gradient's; another form may be the cheapest."""
        weight = self.view.weight
        self._forget_stale()
        cached = self._of_rows.get(rows)
        if cached is None or cached.device != weight.device:
            cached = self._of_rows[rows] = Projection(self.subspaces, rows, weight.dtype, weight.device)
        return cached

    @property
    def _channels_last(self) -> bool:
        return not self.biases and self.view.channels_last  # beside a bias the matrix is a copy in any case

    def _projection(self, stack: Tensor, *, hard: bool = False) -> Projection:
        """For a stack as it lies."""
        last = self._channels_last
        self._forget_stale()
        cached = self._projections.get((hard, last))
        if cached is None or (cached.dtype, cached.device) != (stack.dtype, stack.device):
            order = self.view.last_order if last else None
            cached = Projection(self.subspaces, self.view.outputs, stack.dtype, stack.device, hard=hard, order=order)
            self._projections[hard, last] = cached
            if not hard and all(bool((s.weights >= 1).all()) for s in self.subspaces):
                self._projections[True, last] = cached
        return cached

    def _forget_stale(self) -> None:
        """A user may have given directions other weights, or grown a subspace, between two steps."""
        changes = sum(subspace.changes for subspace in self.subspaces)
        if changes != self._changes:
            self._projections, self._of_rows, self._changes = {}, {}, changes

    def _as_it_lies(self, tensors: list[Tensor]) -> Tensor:
        """The stack, its inputs in the order that the weight has them in memory: a view, where all lies as the weight does."""
        return self._stack(tensors, channels_last=self._channels_last)

    def _stack(self, tensors: list[Tensor], *, channels_last: bool = False) -> Tensor:
        """(groups, outputs, inputs + biases), in at least float32 where the weights are narrower."""
        weight, *biases = (tensor.detach() for tensor in tensors)
        stack = self.view.matrix(weight, channels_last=channels_last)
        if biases:
            groups, outputs = stack.shape[:2]
            parts = [bias.of(b).reshape(groups, outputs, 1) for b, bias in zip(biases, self.biases, strict=True)]
            stack = torch.cat([stack, *parts], dim=2)
        return stack.to(torch.promote_types(stack.dtype, torch.float32))

    def _change(self, tensors: list[Tensor], change: Callable[[Tensor], Tensor]) -> None:
        """Runs `change` (in place) on the stack of these tensors and writes the result back into them."""
        stack = self._as_it_lies(tensors)
        change(stack)
        weight, *biases = (tensor.detach() for tensor in tensors)
        if stack.untyped_storage().data_ptr() == weight.untyped_storage().data_ptr():
            return  # a view: changed in place
        inputs = self.view.inputs
        weight.copy_(self.view.tensor(stack[:, :, :inputs], channels_last=self._channels_last))
        for column, (bias, tensor) in enumerate(zip(self.biases, biases, strict=True), start=inputs):
            bias.of(tensor).copy_(stack[:, :, column].reshape(-1))
