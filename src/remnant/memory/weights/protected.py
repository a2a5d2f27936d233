"""One protected weight: its subspaces, and the two operations that keep W·M at its value from the task's start."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..layers import LayerView
from ..report import LayerCheck
from ..subspaces.axes import AxisSubspace
from ..subspaces.gram import Counts, Gram
from ..subspaces.projection import Projection, full_precision
from ..subspaces.sketch import Sketch
from ..subspaces.subspace import Subspace

# A weight is rounded in each plain SGD step between two restores (attachment.ROUNDING_STEPS), and in the restore.
WRITES = 9
LARGE = 1024  # inputs from which a projection and the memory share one copy of the directions
Weights = list["ProtectedWeight"]
AnyGram = Gram | Sketch | Counts
Anchors = Mapping[Tensor, Tensor]  # parameter → its value W₀ at the start of the task


@dataclass(frozen=True, eq=False)
class Site:
    """A module that multiplies the weight, and which of the weight's biases it adds."""

    module: nn.Module
    view: LayerView
    bias: int | None


@dataclass(frozen=True)
class Bias:
    """A bias, or the part of it that belongs to one weight."""

    parameter: Tensor
    part: tuple[int, int] | None

    def part_of(self, tensor: Tensor) -> Tensor:
        return tensor if self.part is None else tensor[slice(*self.part)]


class ProtectedWeight:
    """A weight with its biases, and the subspaces of their inputs, one per group.

    A "stack" is the tensor (groups, outputs, inputs + biases) of [W | b…]: a bias is the weight of an input that is always 1.
    """

    sharded = splits_inputs = False  # whether each process has a part of the weight, and of its inputs
    _own_inputs: Tensor | None = None  # their numbers, for one-hot inputs

    def __init__(
        self,
        name: str,
        view: LayerView,
        sites: list[Site],
        biases: list[Bias],
        *,
        ordered: bool = False,
        sketch: int | None = None,
    ) -> None:
        self.name, self.view, self.sites, self.biases, self.sketch = name, view, sites, biases, sketch
        self.parameters = [view.weight, *(bias.parameter for bias in biases)]
        kind = AxisSubspace if view.one_hot else Subspace
        dtype = torch.promote_types(view.weight.dtype, torch.float32)
        capacity = view.inputs + len(biases)
        self.capacity = view.groups * capacity
        placement: dict[str, Any] = {"dtype": dtype, "device": view.weight.device}
        self.subspaces = [kind(capacity, ordered=ordered, **placement) for _ in range(view.groups)]
        self.added: list[int] = []  # directions per task, summed over the groups
        self._projections: dict[tuple[object, ...], Projection] = {}
        self._changes = 0  # of the subspaces, when the projections were made

    @property
    def rank(self) -> int:
        return sum(subspace.rank for subspace in self.subspaces)

    @property
    def is_soft(self) -> bool:
        """Whether a direction has a weight below 1, so that steps may move it a little."""
        return any(bool((subspace.weights < 1).any()) for subspace in self.subspaces)

    def adopt(self, subspaces: list[Subspace], added: list[int]) -> None:
        """Replaces the subspaces by grown or loaded ones."""
        self.subspaces, self.added, self._projections = subspaces, added, {}

    def project_gradient(self) -> None:
        """∇W ← ∇W − (∇W·M)·Mᵀ in `.grad` (Eq. 6–7)."""
        grads = [parameter.grad for parameter in self.parameters]
        if self.view.one_hot and (grad := self.view.weight.grad) is not None and grad.is_sparse:
            return self._project_rows(grad)
        if all(grad is None for grad in grads) or any(grad is not None and grad.is_sparse for grad in grads):
            return  # `restore` is exact without it, and handles sparse gradients
        tensors = [torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters, grads, strict=True)]
        with full_precision(self.view.weight.device):
            self._project(tensors)

    def project_among(self, gradients: dict[Tensor, Tensor]) -> None:
        """Projects the weight's gradients in a dict (parameter → gradient), and leaves `.grad` alone."""
        if self.biases:
            self._project([gradients[p] if p in gradients else torch.zeros_like(p) for p in self.parameters])
        elif (gradient := gradients.get(self.view.weight)) is not None:
            stack = self._stack([gradient])
            remaining = self.projection(stack).remove(stack)
            gradients[self.view.weight] = self.view.tensor(remaining, channels_last=self._channels_last).to(
                gradient.dtype
            )

    def _project(self, tensors: list[Tensor]) -> None:
        stack = self._stack(tensors)
        self._write(tensors, self.projection(stack).remove_(stack))

    def _project_rows(self, grad: Tensor) -> None:
        """Projects a sparse gradient of an embedding. It replaces the gradient, whose values other tensors may share."""
        indices, values = grad._indices(), grad._values()
        free = self.projection(grad).right.index_select(0, indices[0]).reshape(-1, *[1] * (values.ndim - 1))
        self.view.weight.grad = torch.sparse_coo_tensor(
            indices, values * free, grad.shape, is_coalesced=grad.is_coalesced(), check_invariants=False
        )

    def moved_along_gradient(self, stepped: set[Tensor]) -> bool:
        """Whether a step of these parameters along their gradients moves the weight and all its biases together."""
        one_hot = self.view.one_hot
        return all(p in stepped and p.grad is not None and (one_hot or not p.grad.is_sparse) for p in self.parameters)

    def restore(self, anchors: Anchors, copies: list[Tensor] | None = None) -> None:
        """W ← W₀ + (W − W₀)·(I − M·Mᵀ), so that W·M = W₀·M after any optimizer's step; or the same for a copy's tensors."""
        # The difference to W₀ makes rounding relative to what the task has learnt; W₀·M would make it relative to W.
        tensors = copies or self.parameters
        stack = self._stack(tensors)
        projection = self.projection(stack, hard=True)
        with full_precision(stack.device):
            start = self._stack(anchors).to(stack)
            self._write(tensors, projection.restore_(stack, start))

    def restore_rows(self, anchors: Anchors, rows: Tensor) -> None:
        """`restore` for an embedding of which a step moved only these rows."""
        weight, start = self.view.weight.detach(), anchors[self.view.weight]
        free = self.projection(weight, hard=True).right.index_select(0, rows)[:, None] > 0
        # index_select takes half the time of indexing.
        restored = torch.where(free, weight.index_select(0, rows), start.index_select(0, rows))
        weight.index_copy_(0, rows, restored)

    def difference(self, anchors: Anchors) -> Tensor:
        """The stack of W − W₀, with its inputs in the order of the rows."""
        return self._stack(self.parameters, by_rows=True) - self._stack(anchors, by_rows=True)

    def check(self, anchors: Anchors, gram: AnyGram | None) -> LayerCheck:
        """Measures the leak ‖(W − W₀)·M‖ / ‖W − W₀‖, and with the Gram matrix of an old task's rows the drift."""
        now = self._stack(self.parameters)
        change = now - self._stack(anchors)
        if not (moved := self._norm(change)):
            return LayerCheck(self.name, 0.0, 0.0, None if gram is None else 0.0)
        with full_precision(change.device):
            inside = change - self.projection(change, hard=True).remove(change)
        # A model that was converted to float64 keeps the directions that float32 has rounded.
        eps = max(
            torch.finfo(x.dtype).eps for x in (self.view.weight, *(subspace.weights for subspace in self.subspaces))
        )
        writes = WRITES if eps < 1e-6 else 2  # narrower types are restored after every step
        rounding = writes * eps / 2 * self._norm(now) / moved
        drift = None if gram is None else self._drift(anchors, gram)
        return LayerCheck(self.name, self._norm(inside) / moved, rounding, drift)

    def _drift(self, anchors: Anchors, gram: AnyGram) -> float:
        """‖ΔW·X‖ / ‖W₀·X‖ from the Gram matrix alone."""
        stacks = (self.difference(anchors), self._stack(anchors, by_rows=True))
        energies = torch.stack([gram.energy_of(stack) for stack in stacks])
        moved, whole_energy = self._sum(energies).tolist()
        return float((moved / whole_energy) ** 0.5) if whole_energy else 0.0

    def change_among(self, tensors: dict[Tensor, Tensor], change: Callable[[Tensor], Tensor]) -> None:
        """Replaces the tensors that belong to the parameters by what `change` makes of their stack."""
        own = [tensors[p] for p in self.parameters]
        self._write(own, change(self._stack(own, by_rows=True)), by_rows=True)

    def projection(self, like: Tensor, *, rows: int | None = None, hard: bool = False) -> Projection:
        """The cheapest projection of stacks, or of that many rows of input, in the type and on the device of `like`."""
        changes = sum(subspace.changes for subspace in self.subspaces)
        if changes != self._changes:  # a user may assign weights or grow a subspace between two steps
            self._projections, self._changes = {}, changes
        channels_last = rows is None and self._channels_last
        key = (rows, like.dtype, like.device, channels_last, hard)
        if key not in self._projections:
            order = self.view.channels_last_order if channels_last else self._own_inputs
            height = rows or (like.shape[1] if like.ndim == 3 else self.view.outputs)
            made = Projection(self.subspaces, height, like.dtype, like.device, hard=hard, order=order)
            self._projections[key] = made
            large = order is None and len(self.subspaces) == 1 and like.shape[-1] > LARGE
            if large and made.form in ("low-rank", "complement"):
                self.subspaces[0].share(made.left[0], complement=made.form == "complement")
            if not hard and all(bool((s.weights >= 1).all()) for s in self.subspaces):
                self._projections[*key[:-1], True] = self._projections[key]
        return self._projections[key]

    def _sum(self, numbers: Tensor) -> Tensor:
        """Of all processes, if each has a part of the weight."""
        return numbers

    def _norm(self, stack: Tensor) -> float:
        return float(stack.norm())

    @property
    def _channels_last(self) -> bool:
        """Whether the weight's memory has its channels last, so that the stack is a view only in that order."""
        weight, view = self.view.weight, self.view
        if self.biases or weight.ndim < 3 or view.groups > 1 or view.output_dim:
            return False  # with biases, the stack is a copy in any case
        return not weight.is_contiguous() and weight.movedim(1, -1).is_contiguous()

    def _stack(self, tensors: list[Tensor] | Anchors, *, by_rows: bool = False) -> Tensor:
        """Stacks tensors shaped like the parameters, with the inputs in the memory's order or the rows'. It may be a view."""
        if isinstance(tensors, Mapping):
            tensors = [tensors[p].to(p.device) for p in self.parameters]
        weight, *biases = (tensor.detach() for tensor in tensors)
        if weight.ndim == 2 and self.view.groups == 1 and not self.view.output_dim:
            stack = weight[None]  # what `matrix` returns, but sooner: this runs in every step
        else:
            stack = self.view.matrix(weight, channels_last=self._channels_last and not by_rows)
        if biases:
            groups, outputs = stack.shape[:2]
            parts = [bias.part_of(b).reshape(groups, outputs, 1) for b, bias in zip(biases, self.biases, strict=True)]
            stack = torch.cat([stack, *parts], dim=2)
        return stack.to(torch.promote_types(stack.dtype, torch.float32))

    def _write(self, tensors: list[Tensor], stack: Tensor, *, by_rows: bool = False) -> None:
        """Writes a stack back into the tensors, unless it is a view of them."""
        weight, *biases = (tensor.detach() for tensor in tensors)
        if stack.untyped_storage().data_ptr() == weight.untyped_storage().data_ptr():
            return
        matrix = stack[:, :, : self.view.inputs]
        weight.copy_(self.view.tensor(matrix, channels_last=self._channels_last and not by_rows))
        for column, (bias, tensor) in enumerate(zip(self.biases, biases, strict=True), start=self.view.inputs):
            bias.part_of(tensor).copy_(stack[:, :, column].reshape(-1))
