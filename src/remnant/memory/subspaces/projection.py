"""Removes the remembered directions from a gradient, an update or an input (Eq. 6–7), in the cheapest exact form.

For a stack x of matrices (groups × outputs × n) with one subspace per group, the forms and their costs in flops are

    low-rank    x − (x·M)·Mᵀ      4·outputs·n·k
    complement  (x·N)·Nᵀ          4·outputs·n·(n−k)
    dense       x·(I − M·Mᵀ)      2·outputs·n², in one kernel instead of two
    axes        x ⊙ (1 − used)    for one-hot inputs

The products need full float32 precision, whatever the user has set: the 10 bits of TF32 would leak 3e-4 of every step.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from . import split_products
from .axes import AxisSubspace
from .subspace import Subspace

# The cost of launching one more kernel (a few µs), in flops.
LAUNCH = {"cpu": 2e5, "cuda": 1e8}
ALIGNED = 8  # columns: 32 bytes of float32, 16 of bfloat16
SPLIT_FROM = 2e10  # flops, about 0.4 ms in float32; below, split products cost as much as they gain


def cheapest_form(outputs: int, inputs: int, rank: int, spare: int, device: str, groups: int = 1) -> str:
    """The form that costs least for (groups × outputs × inputs) gradients; `spare` is inputs − the lowest rank."""
    launch = LAUNCH.get(device, LAUNCH["cuda"])
    size = groups * outputs * inputs
    costs = {
        "low-rank": 4.0 * size * rank + 2 * launch,
        "complement": 4.0 * size * spare + 2 * launch,
        "dense": 2.0 * size * inputs + launch,
    }
    return min(costs, key=costs.__getitem__)


class Projection:
    """Computes what remains of x outside a stack of subspaces, in the cheapest form or in the given one."""

    def __init__(
        self,
        subspaces: Sequence[Subspace],
        outputs: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        hard: bool = False,  # removes only the directions of weight 1
        form: str | None = None,
        order: Tensor | None = None,  # of the inputs in x, if it is not that of the subspaces
    ) -> None:
        n, ranks = subspaces[0].capacity, [subspace.rank for subspace in subspaces]
        weights = [subspace.weights for subspace in subspaces]
        soft = any(bool((weight < 1).any()) for weight in weights)
        stacked = partial(_stacked, order=order, dtype=dtype, device=device)
        if isinstance(subspaces[0], AxisSubspace):
            form = "axes"
        elif soft and form in (None, "complement"):
            form = "low-rank"
        self.form = form or cheapest_form(outputs, n, max(ranks), n - min(ranks), device.type, groups=len(subspaces))
        smaller = n - min(ranks) if self.form == "complement" else max(ranks)
        large = 4 * len(subspaces) * outputs * n * smaller >= SPLIT_FROM
        products: Any = split_products if large and split_products.fit(dtype, device) else torch
        self.bmm, self.baddbmm = products.bmm, products.baddbmm
        if self.form == "axes":
            free = 1 - (subspaces[0]._stored if order is None else subspaces[0]._stored[order])
            self.right = ((free > 0) if hard else free).to(device=device, dtype=dtype)
        elif self.form == "complement":
            self.left = stacked([subspace.complement for subspace in subspaces])
            self.right = self.left.mT
        else:
            bases = [subspace.basis for subspace in subspaces]
            scales = [(weight >= 1).to(weight) if hard else weight for weight in weights]
            left = stacked(bases)
            right = stacked([b * scale for b, scale in zip(bases, scales, strict=True)]).mT if soft else left.mT
            if self.form == "dense":
                eye = torch.eye(n, dtype=torch.float64, device=device)
                self.right = (eye - left.double() @ right.double()).to(dtype)
            else:
                self.left, self.right = left, right

    def remove(self, x: Tensor) -> Tensor:
        """x − (x·M)·Mᵀ for x of shape (groups, outputs, n)."""
        if self.form == "axes":
            return x * self.right
        if self.form == "dense":
            return x @ self.right
        if self.form == "complement":
            return self.bmm(self.bmm(x, self.left), self.right)
        return self.baddbmm(x, self.bmm(x, self.left), self.right, alpha=-1)

    def remove_(self, x: Tensor) -> Tensor:
        """`remove` in place."""
        if self.form == "axes":
            return x.mul_(self.right)
        if self.form == "low-rank":
            return self.baddbmm(x, self.bmm(x, self.left), self.right, alpha=-1, out=x)
        if self.form == "complement":
            return self.bmm(self.bmm(x, self.left), self.right, out=x)
        return x.copy_(self.remove(x))

    def restore_(self, x: Tensor, start: Tensor) -> Tensor:
        """x ← start + (x − start)·(I − M·Mᵀ), in place and in the fewest passes over x."""
        moved = x - start
        if self.form == "axes":
            return torch.addcmul(start, moved, self.right, out=x)
        if self.form == "low-rank":
            return self.baddbmm(x, self.bmm(moved, self.left), self.right, alpha=-1, out=x)
        if self.form == "complement":
            return self.baddbmm(start, self.bmm(moved, self.left), self.right, out=x)
        return torch.baddbmm(start, moved, self.right, out=x)


def _stacked(columns: Sequence[Tensor], *, order: Tensor | None, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Groups may have different ranks, so columns of zeros are added; a few more align the rows for a GPU."""
    width = max(column.shape[1] for column in columns)
    width += -width % ALIGNED
    if order is not None:
        columns = [column[order.to(column.device)] for column in columns]
    padded = [torch.nn.functional.pad(column, (0, width - column.shape[1])) for column in columns]
    return torch.stack(padded).to(device=device, dtype=dtype)


FULL = ("none", "ieee", "highest")


class _OneSwitch:
    """The switch of older torch versions, as an object like those of newer ones."""

    fp32_precision = property(
        lambda self: torch.get_float32_matmul_precision(),
        lambda self, value: torch.set_float32_matmul_precision("highest" if value == "ieee" else value),
    )


# Newer torch has one switch per backend, and raises if they are mixed with the older function.
_BACKENDS: Any = torch.backends
_NEW = hasattr(_BACKENDS.cuda.matmul, "fp32_precision")
CPU_SWITCHES: list[Any] = [_BACKENDS.mkldnn.matmul] if _NEW else [_OneSwitch()]
SWITCHES: list[Any] = [_BACKENDS.cuda.matmul] if _NEW else [_OneSwitch()]
SWITCHES += [_BACKENDS.cudnn.conv] if hasattr(_BACKENDS.cudnn, "conv") else []


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Turns off TF32, bf16 products and autocast on a device inside a `with` block.

    Example:
        >>> with full_precision(torch.device("cpu")):
        ...     torch.ones(2, 2) @ torch.ones(2, 2)
        tensor([[2., 2.],
                [2., 2.]])
    """
    switches = CPU_SWITCHES if device.type == "cpu" else SWITCHES
    before = {switch: setting for switch in switches if (setting := str(switch.fp32_precision)) not in FULL}
    for switch in before:
        switch.fp32_precision = "ieee"
    try:
        with torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else nullcontext():
            yield
    finally:
        for switch, setting in before.items():
            switch.fp32_precision = setting
