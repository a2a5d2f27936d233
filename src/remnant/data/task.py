"""A task and its splits; tensors are made on first use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar
from weakref import ref

import torch
from torch import Tensor

Device = torch.device | str
MakeX = Callable[[torch.device], Tensor]
MakeY = Callable[[], Tensor]

CPU = torch.device("cpu")


class Split:
    """Examples `x` (N×…) and their labels `y` (N, int64), both made on first use.

    Splits keep at most `budget` bytes of examples in memory together; beyond that, the one used longest ago drops its
    examples and makes them again on the next use. So ten permutations of a dataset do not become ten copies of it.

    Example:
        >>> split = Split.of(torch.rand(5, 3), torch.tensor([0, 1, 0, 1, 1]))
        >>> len(split), split.x.shape
        (5, torch.Size([5, 3]))
    """

    budget: ClassVar[int] = 256 * 2**20
    _recent: ClassVar[list[ref[Split]]] = []

    def __init__(self, size: int, x: MakeX, y: MakeY) -> None:
        self._size = size
        self._make_x, self._make_y = x, y
        self._x: Tensor | None = None
        self._last: ref[Tensor] | None = None
        self._y: Tensor | None = None

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Split:
        """A split of two tensors, which it never forgets."""
        made = cls(len(y), lambda device: x.to(device), lambda: y)
        made._x, made._y = x, y
        return made

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"Split({self._size:,} examples)"

    @property
    def x(self) -> Tensor:
        if self._x is None:
            x = self._known()
            self._x = self._make_x(CPU) if x is None else x
            self._last = ref(self._x)
        x = self._x
        self._forget_others()
        return x

    @property
    def y(self) -> Tensor:
        if self._y is None:
            self._y = self._make_y()
        return self._y

    def to(self, device: Device) -> Split:
        """The same split on `device`. Stored bytes are copied there first and become floats there.

        On a GPU, images are stored channels-last, the format that convolutions read there.
        """
        target, x = torch.device(device), self._known()
        x = x.to(target) if x is not None else self._make_x(target)
        if target.type == "cuda" and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return Split.of(x, self.y.to(target))

    def _known(self) -> Tensor | None:
        return self._x if self._x is not None else self._last() if self._last is not None else None

    def _forget_others(self) -> None:
        """Makes this split the most recent one and drops the examples of the oldest beyond the budget."""
        if self._last is None:  # it was given its tensors and could not make them again
            return
        others = [s for r in Split._recent if (s := r()) is not None and s is not self and s._x is not None]
        kept, room = [], Split.budget
        for split in (self, *others):
            room -= 0 if split._x is None else split._x.numel() * split._x.element_size()
            if room >= 0 or split is self:
                kept.append(ref(split))
            else:
                split._x = None
        Split._recent = kept


@dataclass(frozen=True, eq=False)
class Task:
    """One task of a stream.

    Attributes:
        classes: the number of classes.
        train, valid, test: the splits; `valid` may be empty. Labels count from 0 in a multi-head stream and number the
            outputs of the one head in a single-head stream.
        labels: the numbers that the classes have in the original dataset.

    Example:
        >>> digits = Split.of(torch.rand(4, 64), torch.tensor([0, 1, 0, 1]))
        >>> task = Task("zeros and ones", 2, train=digits, valid=digits, test=digits)
        >>> task.to("cpu").train
        Split(4 examples)
    """

    name: str
    classes: int
    train: Split
    valid: Split
    test: Split
    labels: tuple[int, ...] = ()

    def to(self, device: Device) -> Task:
        """The same task with all its tensors on `device`."""
        return replace(self, train=self.train.to(device), valid=self.valid.to(device), test=self.test.to(device))
