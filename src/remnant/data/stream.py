"""A stream of tasks, each with its train, valid and test split; tensors are made when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload
from weakref import ref

import torch
from torch import Tensor

from .errors import DataError

if TYPE_CHECKING:
    from torch.utils.data import Dataset as TorchDataset

    from .own import ArrayLike, Pair

Head = Literal["single", "multi"]
Device = torch.device | str
MakeX = Callable[[torch.device], Tensor]
MakeY = Callable[[], Tensor]

CPU = torch.device("cpu")


class Split:
    """Examples `x` and labels `y` (int64). Both are made on first use.

    Made examples are kept up to `budget` bytes over all splits and forgotten oldest first; whoever
    holds the tensor keeps it, and the split finds it again. So ten permutations of one set do not
    become ten copies of it unless someone asks for ten at once.
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
        """A split of tensors that are there already; it holds them for good."""
        made = cls(len(y), lambda device: x.to(device), lambda: y)
        made._x, made._y = x, y
        return made

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"Split({self._size:,} examples)"

    @property
    def x(self) -> Tensor:
        if self._x is not None:
            self._touch()
            return self._x
        x = self._last() if self._last is not None else None
        if x is None:
            x = self._make_x(CPU)
        self._x, self._last = x, ref(x)
        self._touch()
        return x

    @property
    def y(self) -> Tensor:
        if self._y is None:
            self._y = self._make_y()
        return self._y

    def to(self, device: Device) -> Split:
        """The same split, whole, on `device`: bytes travel, and become numbers there.

        On a GPU images lie channels-last, as convolutions there read them: else each step would turn its batch round.
        """
        place = torch.device(device)
        known = self._x if self._x is not None else self._last() if self._last is not None else None
        x = known.to(place) if known is not None else self._make_x(place)
        if place.type == "cuda" and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return Split.of(x, self.y.to(place))

    def _touch(self) -> None:
        """Moves this split to the front and forgets the oldest ones beyond the budget."""
        if self._last is None:  # given, not made: nothing to make it from again
            return
        live = [s for r in Split._recent if (s := r()) is not None and s is not self and s._x is not None]
        kept: list[Split] = [self]
        room = Split.budget - _bytes(self)
        for split in live:
            room -= _bytes(split)
            if room >= 0:
                kept.append(split)
            else:
                split._x = None
        Split._recent = [ref(split) for split in kept]


def _bytes(split: Split) -> int:
    return 0 if split._x is None else split._x.numel() * split._x.element_size()


@dataclass(frozen=True, eq=False)
class Task:
    """One task. Labels run over 0 … classes−1 in a multi-head stream, over the one head's outputs in a single-head one.

    `labels` are the numbers these classes have in the set they come from.
    """

    name: str
    classes: int
    train: Split
    valid: Split
    test: Split
    labels: tuple[int, ...] = ()

    def to(self, device: Device) -> Task:
        """This task with all its tensors made and held on `device`."""
        return replace(self, train=self.train.to(device), valid=self.valid.to(device), test=self.test.to(device))


@dataclass(frozen=True, eq=False)
class Stream(Sequence[Task]):
    """Tasks in the order they are learned, and the head they are learned with.

    `head="multi"`: one output layer per task, chosen by the task's number. `head="single"`: one
    output layer for all, no hint of the task.
    """

    name: str
    tasks: tuple[Task, ...]
    head: Head
    input_shape: tuple[int, ...]
    head_sizes: tuple[int, ...]
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", dict(self.options))
        if self.head not in ("single", "multi"):
            raise DataError(f"head={self.head!r}: a stream's head is 'single' or 'multi'.")
        if not self.tasks:
            raise DataError(f"Stream '{self.name}' has no tasks.")
        wanted = 1 if self.head == "single" else len(self.tasks)
        if len(self.head_sizes) != wanted:
            raise DataError(
                f"Stream '{self.name}' needs {wanted} head size(s), one per head; got {len(self.head_sizes)}."
            )
        for number, task in enumerate(self.tasks, 1):
            for part in ("train", "test"):
                if len(getattr(task, part)) == 0:
                    raise DataError(f"Task {number} ('{task.name}') of stream '{self.name}' has no {part} examples.")
            if self.head == "multi" and task.classes < 2:
                raise DataError(
                    f"Task {number} ('{task.name}') of stream '{self.name}' has one class: a head of its own would have "
                    "nothing to decide. Give it more classes, or use head='single'."
                )

    @property
    def classes(self) -> int:
        """Outputs of all heads together."""
        return sum(self.head_sizes)

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Task, ...]: ...
    def __getitem__(self, index: int | slice) -> Task | tuple[Task, ...]:
        return self.tasks[index]

    @classmethod
    def from_arrays(
        cls,
        train: Sequence[Pair],
        test: Sequence[Pair] | float = 0.2,
        *,
        valid: Sequence[Pair] | float = 0.0,
        head: Head = "multi",
        classes: int | Sequence[int] | None = None,
        relabel: bool = False,
        names: Sequence[str] | None = None,
        name: str = "arrays",
        seed: int = 0,
    ) -> Stream:
        """A stream of one `(x, y)` pair per task, arrays or tensors; see `remnant.data.own.from_arrays`."""
        from .own import from_arrays

        return from_arrays(
            train, test, valid=valid, head=head, classes=classes, relabel=relabel, names=names, name=name, seed=seed
        )

    @classmethod
    def from_datasets(
        cls,
        train: Sequence[TorchDataset[tuple[ArrayLike, int]]],
        test: Sequence[TorchDataset[tuple[ArrayLike, int]]],
        *,
        valid: Sequence[TorchDataset[tuple[ArrayLike, int]]] | float = 0.0,
        head: Head = "multi",
        classes: int | Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        name: str = "datasets",
        seed: int = 0,
    ) -> Stream:
        """A stream of one torch Dataset per task and part; see `remnant.data.own.from_datasets`."""
        from .own import from_datasets

        return from_datasets(train, test, valid=valid, head=head, classes=classes, names=names, name=name, seed=seed)

    @classmethod
    def from_folder(
        cls,
        path: str | PathLike[str],
        *,
        head: Head = "multi",
        size: tuple[int, int] | None = None,
        valid: float = 0.0,
        name: str | None = None,
        seed: int = 0,
    ) -> Stream:
        """A stream of images in `taskNN/{train,test}/class/…`; see `remnant.data.image_folder.from_folder`."""
        from .image_folder import from_folder

        return from_folder(path, head=head, size=size, valid=valid, name=name, seed=seed)
