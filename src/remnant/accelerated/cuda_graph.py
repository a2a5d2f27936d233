"""Steps and validations captured into CUDA graphs, so that the host starts dozens of steps with one call.

A graph reads the tensors it was captured with, so the classes here keep those tensors as long as their graphs.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from remnant.data import Split
from remnant.evaluation import Evaluation, PendingEvaluation, evaluation_sums
from remnant.methods import Method
from remnant.training import Steps, Validation, Work

from .warmup import warm_up

LONGEST = 64  # steps per graph

# Torch's allocator may still ask failed graphs which stream they were captured on.
_failed: list[torch.cuda.CUDAGraph] = []


class CapturedSteps(Steps):
    """The steps of `EagerSteps`, captured once by `capture` and replayed in every epoch."""

    def __init__(self, method: Method, train: Split, batch: int) -> None:
        super().__init__(method, train, batch)
        self.x, self.y = train.x, train.y
        whole, long = self.whole_batches, _steps_per_graph(self.whole_batches)
        lengths = {long * batch if whole >= long else 0, batch if whole % long else 0, self.tail} - {0}
        self.lengths = sorted(lengths, reverse=True)
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def capture(self) -> Work[None]:
        """Captures the graphs. Yields between its parts, which together take as long as an epoch of five runs."""
        yield lambda: warm_up(self.method.network)  # takes seconds the first time
        # Libraries set themselves up on first use, which must not happen during a capture.
        with _unchanged(self.method.step_tensors()):
            for rows in {min(self.batch, self.rows), self.tail} - {0}:
                self._step(torch.arange(rows, device=self.x.device))
        yield None
        # Frees the last task's graphs. One collection serves all graphs: it visits every object, and torch alone has 250,000.
        gc.collect()
        yield None
        pool = torch.cuda.graph_pool_handle()
        for rows in self.lengths:
            self.graphs[rows] = self._captured(rows, pool)
            yield None

    def epoch(self) -> Work[None]:
        self.loss.zero_()
        self.order = self.new_order()
        yield self._replay

    def _replay(self) -> None:
        """Starts all graphs of an epoch, so that the device has work while the host advances another run."""
        done = 0
        while left := self.rows - done:
            rows = next(rows for rows in self.graphs if rows <= left)  # the longest first
            graph, index = self.graphs[rows]
            index.copy_(self.order[done : done + rows])
            graph.replay()
            done += rows

    def _captured(self, rows: int, pool: Any) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        index = torch.zeros(rows, dtype=torch.int64, device=self.x.device)
        graph = torch.cuda.CUDAGraph()
        with _capturing(graph, pool):
            for part in index.split(self.batch):
                self._step(part)
        return graph, index

    def _step(self, part: Tensor) -> None:
        self.loss += self.method.step(self.x[part], self.y[part])


def _steps_per_graph(steps: int) -> int:
    """The length with the fewest captured steps plus started graphs: about the square root of an epoch's steps."""
    lengths = range(1, min(LONGEST, max(1, steps)) + 1)
    return min(lengths, key=lambda n: n + bool(steps % n) + steps // n + steps % n)


class CapturedValidation(Validation):
    """A validation that is plain the first time, captured the second time and replayed from then on.

    The first time is plain because libraries set themselves up on first use, which must not happen during a capture.
    """

    def __init__(self, method: Method, splits: Mapping[int, Split], batch: int) -> None:
        super().__init__(method, splits, batch)
        self._times = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def evaluate(self) -> Work[Evaluation]:
        if self._times == 1:
            self._capture()
        self._times += 1
        if self._graph is None:
            return (yield from super().evaluate())
        yield self._graph.replay
        pending = PendingEvaluation(self._sums, self.sizes)
        while not pending.ready:
            yield None
        return pending.result()

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with _capturing(graph, torch.cuda.graph_pool_handle()):
                self._sums, _ = evaluation_sums(self.method.logits, self.splits, self.batch, F.cross_entropy)
        except RuntimeError as error:
            self.fallback = f"validation is not captured: {str(error).splitlines()[0]}"
        else:
            self._graph = graph


def can_capture_validation(method: Method) -> bool:
    """Whether the method's `logits` declare that they can be captured.

    Trying is not enough: a capture that freezes a changing value does not fail.
    """
    return bool(method.logits_recordable) and "logits" not in vars(method)


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """Captures the work that this thread queues; other threads may use the device freely.

    The garbage collector is off, because freeing device memory breaks a capture.
    """
    gc.disable()
    try:
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            yield
        except BaseException:
            with suppress(RuntimeError):  # the first error says why, and is the one to raise
                graph.capture_end()
            raise
        graph.capture_end()
    except RuntimeError:
        _clean_up(graph, pool)
        raise
    finally:
        gc.enable()


def _clean_up(failed: torch.cuda.CUDAGraph, pool: Any) -> None:
    """Ends a failed capture for torch's allocator and generator, which still believe in it: no random number can be drawn.

    The allocator has a function for that; the generator recovers with one more capture that ends well.
    """
    _failed.append(failed)
    names = ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool")  # since torch 2.8, and before
    end = next(getattr(torch._C, name) for name in names if hasattr(torch._C, name))
    with suppress(RuntimeError):  # torch may have done this itself
        end(torch.cuda.current_device(), pool)
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=torch.cuda.graph_pool_handle(), capture_error_mode="thread_local")
    torch.zeros((), device="cuda")
    graph.capture_end()


@contextmanager
def _unchanged(tensors: list[Tensor]) -> Iterator[None]:
    """Restores tensors and random state afterwards."""
    before = [tensor.detach().clone() for tensor in tensors]
    generator = torch.cuda.default_generators[tensors[0].device.index or 0]
    random = generator.get_state()
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, old in zip(tensors, before, strict=True):
                tensor.copy_(old)
        generator.set_state(random)
