"""An epoch of steps recorded into CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from remnant.data import Split
from remnant.methods import Method
from remnant.training import Blocking, Work, rows_seen

from .recording import recording
from .warmup import warm_up

LONGEST = 64  # steps to a graph


class CapturedSteps:
    """The same steps, recorded once into CUDA graphs and replayed: the host starts dozens of steps with one call.

    Graphs read the tensors they were captured with, so those are kept here for as long as the graphs live.
    """

    def __init__(self, method: Method, train: Split, batch: int) -> None:
        self.method, self.train, self.batch = method, train, batch
        self.x, self.y = train.x, train.y
        self.rows = rows_seen(len(self.y), batch)
        self.count = -(-self.rows // batch)
        self.loss = torch.zeros((), device=self.x.device)
        whole, self.tail = divmod(self.rows, batch)
        self.long = _steps_per_graph(whole)
        lengths = {self.long * batch if whole >= self.long else 0, batch if whole % self.long else 0, self.tail} - {0}
        self.lengths = sorted(lengths, reverse=True)
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def record(self) -> Generator[Blocking | None, None, None]:
        """Before the first epoch. Between its pieces others may go: together they are as long as an epoch of five runs."""
        yield lambda: warm_up(self.method.network)  # seconds, the first time
        # Libraries set themselves up on first use, which a capture must not see.
        with _unchanged(self.method.tensors()):
            for rows in {min(self.batch, self.rows), self.tail} - {0}:
                self._one(torch.arange(rows, device=self.x.device))
        yield None
        # Gives back what the last task left. One for all graphs: it looks at every object there is, and torch alone has a
        # quarter of a million.
        gc.collect()
        yield None
        pool = torch.cuda.graph_pool_handle()
        for rows in self.lengths:
            self.graphs[rows] = self._capture(rows, pool)
            yield None

    def epoch(self) -> Work:
        self.loss.zero_()
        self.order = self.method.order(self.train, self.batch)[: self.rows]
        yield self._replay

    def _replay(self) -> None:
        """All graphs of an epoch in one go: the device has work while the host is busy with another run."""
        done = 0
        while left := self.rows - done:
            rows = next(rows for rows in self.graphs if rows <= left)  # the longest first
            graph, index = self.graphs[rows]
            index.copy_(self.order[done : done + rows])
            graph.replay()
            done += rows

    def _capture(self, rows: int, pool: Any) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        index = torch.zeros(rows, dtype=torch.int64, device=self.x.device)
        graph = torch.cuda.CUDAGraph()
        with recording(graph, pool):
            for part in index.split(self.batch):
                self._one(part)
        return graph, index

    def _one(self, part: Tensor) -> None:
        self.loss += self.method.step(self.x[part], self.y[part])


def _steps_per_graph(steps: int) -> int:
    """The length for which the fewest steps are recorded and the fewest graphs started: about the root of an epoch's."""
    lengths = range(1, min(LONGEST, max(1, steps)) + 1)
    return min(lengths, key=lambda n: n + bool(steps % n) + steps // n + steps % n)


@contextmanager
def _unchanged(tensors: list[Tensor]) -> Iterator[None]:
    """Puts tensors and random state back as they were."""
    before = [tensor.detach().clone() for tensor in tensors]
    device = tensors[0].device
    random = torch.cuda.default_generators[device.index or 0].get_state()
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, old in zip(tensors, before, strict=True):
                tensor.copy_(old)
        torch.cuda.default_generators[device.index or 0].set_state(random)
