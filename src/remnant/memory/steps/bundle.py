"""Projects and restores small weights of one shape together, because Python and launches would take most of the time."""

from collections import Counter

import torch
from torch import Tensor

from ..subspaces.projection import Projection, full_precision
from ..weights.protected import Anchors, ProtectedWeight, Weights

SMALL = 2**17  # elements of a stack; for larger ones the arithmetic takes longer than Python


class Bundle:
    """Weights whose stacks have one shape. They are copied into one buffer, projected or restored there, and copied back."""

    def __init__(self, weights: Weights, anchors: Anchors) -> None:
        view, subspaces = weights[0].view, [subspace for weight in weights for subspace in weight.subspaces]
        place = torch.promote_types(view.weight.dtype, torch.float32), view.weight.device
        shape = len(subspaces), view.outputs, subspaces[0].capacity
        self._buffer = torch.zeros(shape, dtype=place[0], device=place[1])
        parts = self._buffer.split([weight.view.groups for weight in weights])
        self.parameters = [parameter for weight in weights for parameter in weight.parameters]
        self._slots = [slot for weight, part in zip(weights, parts, strict=True) for slot in _slots(weight, part)]
        torch._foreach_copy_(self._slots, [anchors[parameter] for parameter in self.parameters])
        self._start = self._buffer.clone()
        self._projection = self._hard = Projection(subspaces, view.outputs, *place)
        if any(bool((subspace.weights < 1).any()) for subspace in subspaces):
            self._hard = Projection(subspaces, view.outputs, *place, hard=True)
        self.projected = False  # whether all gradients were there when they were projected last

    def project(self) -> None:
        """∇W ← ∇W − (∇W·M)·Mᵀ in `.grad` (Eq. 6–7)."""
        grads = [parameter.grad for parameter in self.parameters]
        pairs = [(slot, g) for slot, g in zip(self._slots, grads, strict=True) if g is not None and not g.is_sparse]
        self.projected = len(pairs) == len(grads)
        if pairs:
            slots, present = map(list, zip(*pairs, strict=True))
            if not self.projected:
                self._buffer.zero_()
            torch._foreach_copy_(slots, present)
            with full_precision(self._buffer.device):
                self._projection.remove_(self._buffer)
            torch._foreach_copy_(present, slots)

    def restore(self) -> None:
        """W ← W₀ + (W − W₀)·(I − M·Mᵀ)."""
        torch._foreach_copy_(self._slots, self.parameters)
        with full_precision(self._buffer.device):
            self._hard.restore_(self._buffer, self._start)
        torch._foreach_copy_(self.parameters, self._slots)


def _slots(weight: ProtectedWeight, stack: Tensor) -> list[Tensor]:
    """The places of a weight and its biases in a stack, as views with the shapes of the parameters."""
    inputs = weight.view.inputs
    columns = range(inputs, inputs + len(weight.biases))
    return [weight.view.tensor(stack[:, :, :inputs]), *(stack[:, :, column].reshape(-1) for column in columns)]


def bundles_of(weights: Weights, all_weights: Weights, anchors: Anchors) -> tuple[list[Bundle], Weights]:
    """Returns bundles of the small weights, and the weights to handle alone: large, unusual, or the only one of a shape."""
    sides = Counter(weight.view.weight for weight in all_weights)
    groups: dict[object, Weights] = {}
    for weight in weights:
        view, parameter = weight.view, weight.view.weight
        plain = (
            not weight.sharded
            and not view.one_hot
            and (view.groups == 1 or not view.output_dim)
            and not any(b.part for b in weight.biases)
        )
        # A two-sided weight is restored once for each side, one after the other.
        fits = plain and sides[parameter] == 1 and weight.capacity * view.outputs <= SMALL
        shape = view.outputs, weight.subspaces[0].capacity, parameter.dtype, parameter.device
        groups.setdefault(shape if fits else weight, []).append(weight)
    alone = [group[0] for key, group in groups.items() if key is group[0] or (len(group) == 1 and not group[0].biases)]
    return [Bundle(group, anchors) for group in groups.values() if group[0] not in alone], alone
