"""A protected weight of which each process has a part: a DTensor of FSDP2 or of tensor parallelism."""

from typing import Any

import torch
from torch import Tensor

from ..layers import LayerView
from .distributed import is_sharded, shard_of, sharded_like, summed, whole
from .protected import Anchors, Bias, ProtectedWeight


class ShardedWeight(ProtectedWeight):
    """Rows of [W | b…] belong to outputs, so a process that has whole rows projects its own without communication."""

    sharded = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.splits_inputs = not _splits_outputs(self.view, self.biases)
        if self.splits_inputs and self.view.one_hot:  # the numbers of the one-hot inputs that this process has
            numbers = torch.arange(self.view.inputs, device=self.view.weight.device)
            self._own_inputs = shard_of(sharded_like(numbers, self.view.weight))

    def project_gradient(self) -> None:
        for parameter in self.parameters:
            _place_gradient(parameter)
        super().project_gradient()

    def _gathers(self, by_rows: bool) -> bool:
        """Whether a stack needs the whole weight: each process has only some inputs. (One-hot inputs are independent.)"""
        return self.splits_inputs and (by_rows or not self.view.one_hot)

    def _sum(self, numbers: Tensor) -> Tensor:
        return summed(numbers.cpu())

    def _norm(self, stack: Tensor) -> float:
        return float(summed(stack.norm().cpu().double().square()).sqrt())

    def _stack(self, tensors: list[Tensor] | Anchors, *, by_rows: bool = False) -> Tensor:
        if not isinstance(tensors, list):
            tensors = [tensors[p].to(p.device) for p in self.parameters]
        opened = whole if self._gathers(by_rows) else shard_of
        return super()._stack([opened(tensor) for tensor in tensors], by_rows=by_rows)

    def _write(self, tensors: list[Tensor], stack: Tensor, *, by_rows: bool = False) -> None:
        if not self._gathers(by_rows):
            super()._write([shard_of(tensor) for tensor in tensors], stack, by_rows=by_rows)
            return
        weight = torch.empty(tensors[0].shape, dtype=tensors[0].dtype, device=tensors[0].device)
        everything = [weight, *(whole(tensor) for tensor in tensors[1:])]
        super()._write(everything, stack, by_rows=by_rows)
        for tensor, values in zip(tensors, everything, strict=True):
            shard_of(tensor).copy_(shard_of(sharded_like(values, tensor)))


def _splits_outputs(view: LayerView, biases: list[Bias]) -> bool:
    """Whether each process has whole rows of [W | b…], those of the same outputs, or everything."""
    kinds = [[_kind(each, view.output_dim) for each in getattr(view.weight, "placements", ())]]
    kinds += [[_kind(each, 0) for each in getattr(bias.parameter, "placements", ())] for bias in biases]
    if not any("outputs" in kind for kind in kinds):
        return all(each == "everything" for kind in kinds for each in kind)
    alike = all(kind == kinds[0] for kind in kinds) and "other" not in kinds[0]
    return alike and view.groups == 1 and not any(bias.part for bias in biases)


def _kind(placement: Any, dim: int) -> str:
    return "outputs" if placement.is_shard(dim) else "everything" if placement.is_replicate() else "other"


def _place_gradient(parameter: Any) -> None:
    """Tensor parallelism may leave a gradient as parts that are still to be summed."""
    grad = parameter.grad
    if grad is not None and is_sharded(grad) and grad.placements != parameter.placements:
        parameter.grad = grad.redistribute(parameter.device_mesh, parameter.placements)
