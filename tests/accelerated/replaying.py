"""A CUDA graph for the CPU: it records operations, and replays them on the same tensors.

Like a real graph, a replay does not run Python, and a capture fails if the host reads a value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

aten = torch.ops.aten
TO_THE_HOST = (aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default)


POOL = object()  # stands for the memory pool


class Graph(TorchDispatchMode):
    may_draw = False  # a CPU's random numbers would be other ones in a replay

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor]]] = []
        self.replays = 0
        self.broken = False

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        assert pool is POOL
        assert capture_error_mode == "thread_local"
        self.__enter__()

    def capture_end(self) -> None:
        self.__exit__(None, None, None)
        if self.broken:
            raise RuntimeError("operation failed due to a previous error during capture")

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        draws = torch.Tag.nondeterministic_seeded in func.tags and not self.may_draw
        if func in TO_THE_HOST or draws:
            self.broken = True
            raise RuntimeError(f"operation not permitted when stream is capturing\n{func}")
        made = func(*args, **(kwargs or {}))
        self.recorded.append((func, args, kwargs or {}, _tensors(made)))
        return made

    def replay(self) -> None:
        self.replays += 1
        with torch.no_grad():
            for func, args, kwargs, kept in self.recorded:
                for before, now in zip(kept, _tensors(func(*args, **kwargs)), strict=True):
                    if now.data_ptr() != before.data_ptr():  # not a view, not changed in place
                        before.copy_(now)


def _tensors(made: Any) -> list[Tensor]:
    return [each for each in tree_flatten(made)[0] if isinstance(each, Tensor)]
