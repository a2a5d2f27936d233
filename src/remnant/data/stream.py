"""A stream is a sequence of tasks, and a task has three splits. Their tensors are made on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from .errors import DataError

if TYPE_CHECKING:
    from .own import Pair, TorchExamples

Device = torch.device | str
Head = Literal["single", "multi"]
ClassOrder = Literal["natural", "shuffled"]

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
    _recent: ClassVar[WeakKeyDictionary[Split, Tensor]] = WeakKeyDictionary()  # the examples in memory, last used last

    def __init__(self, size: int, x: Callable[[torch.device], Tensor], y: Callable[[], Tensor]) -> None:
        self._size, self._make_x, self._make_y = size, x, y
        self._find_x: Callable[[], Tensor | None] = lambda: None  # the examples, as long as somebody uses them

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Split:
        """Makes a split of two tensors, which it never drops."""
        made = cls(len(y), x.to, lambda: y)
        made._find_x = lambda: x
        return made

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"Split({self._size:,} examples)"

    @property
    def x(self) -> Tensor:
        x = self._find_x()
        if x is None:
            x = self._make_x(CPU)
            self._find_x = ref(x)
        if isinstance(self._find_x, ref):  # otherwise the tensor was given and cannot be made again
            Split._recent.pop(self, None)
            Split._recent[self] = x
            excess = sum(tensor.nbytes for tensor in Split._recent.values()) - Split.budget
            for split in list(Split._recent)[:-1]:
                if excess > 0:
                    excess -= Split._recent.pop(split).nbytes
        return x

    @cached_property
    def y(self) -> Tensor:
        return self._make_y()

    def to(self, device: Device) -> Split:
        """Returns the same split on `device`. Stored bytes are copied there first and become floats there.

        Images are stored channels-last, the format that convolutions read fastest.
        """
        target, x = torch.device(device), self._find_x()
        x = x.to(target) if x is not None else self._make_x(target)
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return Split.of(x, self.y.to(target))


@dataclass(frozen=True, eq=False)
class Task:
    """One task of a stream.

    Attributes:
        name: What the task is called in messages and tables.
        classes: The number of classes.
        train, valid, test: The splits; `valid` may be empty. Labels count from 0 in a multi-head stream and number the
            outputs of the one head in a single-head stream.
        labels: The numbers that the classes have in the original dataset.

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
        """Returns the same task with all its tensors on `device`."""
        return replace(self, train=self.train.to(device), valid=self.valid.to(device), test=self.test.to(device))


@dataclass(frozen=True, eq=False)
class Stream(Sequence[Task]):
    """Tasks in the order in which they are learned. `stream[0]`, `len(stream)` and iteration give the tasks.

    Attributes:
        name: What the stream is called in messages and in run folders.
        tasks: The tasks, in order.
        head: "multi" gives every task its own output layer, chosen by the number of the task; "single" has one output
            layer for all tasks and no hint of the task.
        input_shape: The shape of one example.
        head_sizes: The outputs of each head.
        seed, options: What it was made from.

    Example:
        >>> pairs = [(torch.rand(20, 8), torch.arange(20) % 2) for _ in range(3)]
        >>> stream = Stream.from_arrays(pairs, test=0.2)
        >>> [task.name for task in stream], stream.head_sizes
        (['task 1', 'task 2', 'task 3'], (2, 2, 2))
    """

    name: str
    tasks: tuple[Task, ...]
    head: Head
    input_shape: tuple[int, ...]
    head_sizes: tuple[int, ...]
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.head not in ("single", "multi"):
            raise DataError(f"head={self.head!r}: a stream's head is 'single' or 'multi'.")
        if not self.tasks:
            raise DataError(f"Stream '{self.name}' has no tasks.")
        heads = 1 if self.head == "single" else len(self.tasks)
        if len(self.head_sizes) != heads:
            raise DataError(f"Stream '{self.name}' needs {heads} head sizes, not {len(self.head_sizes)}.")
        for number, task in enumerate(self.tasks, 1):
            label = f"Task {number} ('{task.name}') of stream '{self.name}'"
            for part, split in (("train", task.train), ("test", task.test)):
                if len(split) == 0:
                    raise DataError(f"{label} has no {part} examples.")
            if self.head == "multi" and task.classes < 2:
                raise DataError(
                    f"{label} has one class, so a head of its own has nothing to decide. Give the task more classes, or "
                    "use head='single' (on the command line, --set stream.head=single)."
                )

    @property
    def classes(self) -> int:
        """The outputs of all heads together."""
        return sum(self.head_sizes)

    def __len__(self) -> int:
        return len(self.tasks)

    def first(self, tasks: int) -> Stream:
        """Returns the stream with its first tasks only."""
        if not 1 <= tasks <= len(self):
            raise DataError(
                f"first={tasks}: stream '{self.name}' has {len(self)} tasks; choose 1 to {len(self)} of them."
            )
        heads = self.head_sizes if self.head == "single" else self.head_sizes[:tasks]
        options = {**self.options, "first": tasks}
        return replace(self, tasks=self.tasks[:tasks], head_sizes=heads, options=options)

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
        """Makes a stream of one `(x, y)` pair of arrays or tensors per task.

        Images are channels first. uint8 becomes float32 from 0 to 1; int64 stays, for tokens; the rest becomes float32.

        Args:
            train: One pair per task.
            test, valid: One pair per task, or the share of `train` to hold out. Early stopping needs `valid`.
            head: Either "multi" or "single"; see Stream.
            classes: The head sizes, one number or one per task. Without it they are read off the labels.
            relabel: Whether to number classes from 0 in sorted order: those of each task with "multi", all with "single".
            names, name: The names of the tasks and of the stream.
            seed: Chooses the held-out examples.

        Example:
            >>> x, y = torch.rand(20, 8), torch.arange(20) % 4
            >>> pairs = [(x[y < 2], y[y < 2]), (x[y >= 2], y[y >= 2])]
            >>> stream = Stream.from_arrays(pairs, test=0.2, valid=0.1, relabel=True)
            >>> stream[1].labels, stream[1].train
            ((2, 3), Split(7 examples))
        """
        from .own import from_pair, make_stream

        given = {"train": train, "test": test, "valid": valid}
        return make_stream(from_pair, given, head, classes, names, name, seed, relabel)

    @classmethod
    def from_datasets(
        cls,
        train: Sequence[TorchExamples],
        test: Sequence[TorchExamples],
        *,
        valid: Sequence[TorchExamples] | float = 0.0,
        head: Head = "multi",
        classes: int | Sequence[int] | None = None,
        relabel: bool = False,
        names: Sequence[str] | None = None,
        name: str = "datasets",
        seed: int = 0,
    ) -> Stream:
        """Makes a stream of one map-style torch Dataset of `(x, label)` per task.

        With `classes` and without `relabel`, a Dataset is read when its task is first used. Otherwise all are read now.

        Args:
            train, test: One Dataset per task.
            valid, head, classes, relabel, names, name, seed: As in `from_arrays`.

        Example:
            >>> data = torch.utils.data.TensorDataset(torch.rand(20, 8), torch.arange(20) % 2)
            >>> Stream.from_datasets([data, data], [data, data], valid=0.1, classes=2)[0].train
            Split(18 examples)
        """
        from .own import from_dataset, make_stream

        given = {"train": train, "test": test, "valid": valid}
        return make_stream(from_dataset, given, head, classes, names, name, seed, relabel)

    @classmethod
    def from_folder(
        cls,
        path: str | PathLike[str],
        *,
        tasks: int | None = None,
        class_order: ClassOrder = "natural",
        head: Head = "multi",
        size: tuple[int, int] | None = None,
        test: float = 0.2,
        valid: float = 0.0,
        name: str | None = None,
        seed: int = 0,
    ) -> Stream:
        """Makes a stream of image files in `CLASS/`, `TASK/CLASS/`, `{train,test}/CLASS/` or `TASK/{train,test}/CLASS/`.

        Tasks and classes follow in the order of their folders' names. Pixels lie between 0 and 1 and are read on first use.

        Args:
            path: The folder.
            tasks: How many tasks to divide the classes into, if there are no folders of tasks.
            class_order: The order in which classes are divided: by name, or shuffled by the seed.
            head: Either "multi" or "single"; with "single", folders of the same name are one class.
            size: The (height, width) to resize all images to; without it, all must have the same size.
            test, valid: The share of train to hold out where there is no such folder.
            name, seed: As in `from_arrays`; the default name is that of the folder.
        """
        from .pictures import picture_tables
        from .table import Division

        root = Path(path).expanduser()
        division = Division(tasks, class_order, head, test, valid, seed)
        return division.stream(name or root.name, picture_tables(root, size))
