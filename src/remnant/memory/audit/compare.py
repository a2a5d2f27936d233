"""Compares a model's outputs before and after a change of its tensors that is undone."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

HUGE = 1000  # times as large as ordinary outputs: the −1e9 of a mask, for example


def relative_changes(before: list[Tensor], after: list[Tensor]) -> Tensor:
    """Returns the relative change of each output; for whole numbers, the share that differs."""
    if [x.shape for x in before] != [x.shape for x in after]:
        return torch.full((max(1, len(before)),), torch.inf)
    changes = []
    for x, y in zip(before, after, strict=True):
        finite, y = x.isfinite(), y.to(x.device)
        if not torch.equal(finite, y.isfinite()):
            changes.append(torch.inf)
        elif x.is_floating_point():
            parts = [finite]
            if bool((x.abs() > HUGE).any()):  # huge outputs would hide what the others do
                parts = [finite & ordinary(x), finite & ~ordinary(x)]
            changes.append(max(float((x - y)[part].norm() / x[part].norm().clamp(min=1e-12)) for part in parts))
        else:
            changes.append(float((x != y).double().mean()))
    return torch.tensor(changes, dtype=torch.float64)


def ordinary(x: Tensor) -> Tensor:
    """Whether each output is of the size that outputs have. Nearly all of them may be masked: the smallest tell the size."""
    sizes = x.abs().nan_to_num(0.0)
    if not bool((sizes > HUGE).any()):
        return torch.ones_like(x, dtype=torch.bool)
    present = sizes[sizes > 0].flatten()
    small = sizes <= HUGE * present.kthvalue(1 + len(present) // 100).values.clamp(min=1.0)
    if x.ndim > 1:  # a huge example has small outputs, too, with the rounding of huge ones
        typical = sizes.flatten(1).median(dim=1).values
        small &= (typical <= HUGE * typical.min().clamp(min=1.0)).reshape(-1, *[1] * (x.ndim - 1))
    return small


def change_of(before: list[Tensor], after: list[Tensor]) -> float:
    """Returns the largest relative change among the outputs."""
    return float(relative_changes(before, after).max()) if before else 0.0


@contextmanager
def restored(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Gives tensors back the values that they had before the block."""
    before = [(tensor.detach(), tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    finally:
        for tensor, value in before:
            tensor.copy_(value)
