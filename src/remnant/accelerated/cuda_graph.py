"""Steps and validations captured into CUDA graphs, so that the host starts dozens of steps with one call.

A graph reads the tensors it was captured with, so the classes here keep those tensors as long as their graphs. Libraries
set themselves up on first use, which must not happen during a capture, so a few plain steps come first.
"""

import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant.data import Split
from remnant.evaluation import Evaluation, task_sums
from remnant.methods import Method
from remnant.models import ReluDropout
from remnant.training import Steps, Validation, Work, arrival, shuffled

from .norm_pool import FEATURES, LEAST_ROWS, Normalised, NormalisedPool

LONGEST = 64  # steps per graph
# For each norm: the fused operation, whether it pools, and the smallest input that needs the same kernels as most others.
KERNELS: dict[type[nn.Module], tuple[Any, bool, tuple[int, ...]]] = {
    nn.BatchNorm1d: (Normalised, False, (LEAST_ROWS, FEATURES)),
    nn.BatchNorm2d: (NormalisedPool, True, (1, FEATURES, 2, 2)),
}
IMAGES, SIDE = 64, 12  # a typical input of a convolution

_failed: list[torch.cuda.CUDAGraph] = []  # kept, because torch's allocator may still ask them for their stream
_warmed_up: set[type[nn.Module]] = set()
_one_warm_up = threading.Lock()


class CapturedValidation(Validation):
    """A validation that is plain the first time, captured the second time and replayed from then on."""

    _times = 0
    _graph: torch.cuda.CUDAGraph | None = None

    def evaluate(self) -> Work[Evaluation]:
        if self._times == 1 and can_capture_validation(self.method):
            self._capture()
        self._times += 1
        if self._graph is None:
            return (yield from super().evaluate())
        yield self._graph.replay
        return (yield from arrival(self._sums, [len(split) for split in self.splits.values()]))

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        self._shuffled, logits = dict(shuffled(self.method, self.splits)), self.method.logits
        try:
            with _capturing(graph, torch.cuda.graph_pool_handle()):
                sums = [task_sums(logits, t, s.x, s.y, self.batch, F.cross_entropy) for t, s in self._shuffled.items()]
                self._sums = torch.stack(sums)
        except RuntimeError as error:
            self.fallback = f"validation is not captured: {str(error).splitlines()[0]}"
        else:
            self._graph = graph


class CapturedSteps(Steps):
    """The steps of `EagerSteps`, captured once by `capture` and replayed in every epoch."""

    validation = CapturedValidation

    def __init__(self, method: Method, train: Split, batch: int) -> None:
        super().__init__(method, train, batch)
        whole, long = self.whole_batches, _steps_per_graph(self.whole_batches)
        lengths = {long * batch if whole >= long else 0, batch if whole % long else 0, self.tail} - {0}
        self.lengths = sorted(lengths, reverse=True)
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def capture(self) -> Work[None]:
        """Captures the graphs. Yields between its parts, which together take as long as an epoch of five runs."""
        yield lambda: warm_up(self.method.network)  # the first time, this takes seconds
        with _unchanged(self.method.step_tensors()):
            for rows in {min(self.batch, self.rows), self.tail} - {0}:
                self._step(torch.arange(rows, device=self.x.device))
        yield None
        # Frees the last task's graphs. One collection serves all graphs: it visits every object, and torch alone has 250,000.
        gc.collect()
        _return_spare_memory(self.x.device)
        yield None
        pool = torch.cuda.graph_pool_handle()
        for rows in self.lengths:
            index, graph = torch.zeros(rows, dtype=torch.int64, device=self.x.device), torch.cuda.CUDAGraph()
            with _capturing(graph, pool):
                for part in index.split(self.batch):
                    self._step(part)
            self.graphs[rows] = graph, index
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

    def _step(self, part: Tensor) -> None:
        self.loss += self.method.step(self.x[part], self.y[part])


def _steps_per_graph(steps: int) -> int:
    """The length with the fewest captured steps plus started graphs: about the square root of an epoch's steps."""
    lengths = range(1, min(LONGEST, max(1, steps)) + 1)
    return min(lengths, key=lambda n: n + bool(steps % n) + steps // n + steps % n)


def _return_spare_memory(device: torch.device) -> None:
    """Returns the memory of freed graphs to the device once half of it is taken. A capture could not do this."""
    free, total = torch.cuda.mem_get_info(device)
    if free < total / 2:
        torch.cuda.empty_cache()  # all runs wait for this


def can_capture_validation(method: Method) -> bool:
    """Whether the method declares that its `logits` can be captured. Capturing a value that changes would raise no error."""
    return bool(method.logits_recordable) and "logits" not in vars(method)


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """Captures the work that this thread queues, while other threads may use the device freely.

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
    """Ends a failed capture for torch's allocator and generator. Otherwise no random number could be drawn.

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


def warm_up(network: nn.Module) -> None:
    """Compiles kernels and loads libraries in parallel, where the first step would do so one after the other.

    It runs once per class of network, only on a GPU, and draws no random numbers. Other callers wait until it is done. Errors
    are ignored here, because the step will raise them again.
    """
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    with _one_warm_up:
        if device.type != "cuda" or type(network) in _warmed_up:
            return
        _warmed_up.add(type(network))
        modules = list(network.modules())
        pools = {module.pool for module in modules if isinstance(module, ReluDropout)}
        norms = {type(module) for module in modules if not getattr(module, "track_running_stats", True)}
        with ThreadPoolExecutor(initializer=torch.cuda.set_device, initargs=(device,)) as executor:
            executor.submit(_convolve, network, device)
            for norm, (operation, pooled, shape) in KERNELS.items():
                if norm in norms and pooled in pools:
                    executor.submit(_normalise, operation, shape, device)


@torch.no_grad()
def _normalise(operation: Any, shape: tuple[int, ...], device: torch.device) -> None:
    """Runs forward and backward without autograd, whose single thread would compile all backward kernels in sequence."""
    x, weight = torch.zeros(shape, device=device), torch.ones(shape[1], device=device)
    seed = torch.zeros(1, dtype=torch.int64, device=device)
    context = SimpleNamespace()  # in place of autograd's
    context.save_for_backward = lambda *tensors: setattr(context, "saved_tensors", tensors)
    operation.backward(context, operation.forward(context, x, weight, weight, seed, 1e-5, 0.5))


@torch.no_grad()
def _convolve(network: nn.Module, device: torch.device) -> None:
    """Runs each convolution and a norm, as at test time. cuDNN reads its large library in parts, on first use."""
    for conv in (module for module in network.modules() if isinstance(module, nn.Conv2d)):
        x = torch.zeros(IMAGES, conv.in_channels, SIDE, SIDE, dtype=conv.weight.dtype, device=device)
        x = x.to(memory_format=torch.channels_last)
        y = F.batch_norm(conv._conv_forward(x, conv.weight, None), None, None, training=True)  # bypasses hooks
        slide = conv.stride, conv.padding, conv.dilation, False, (0, 0), conv.groups
        torch.ops.aten.convolution_backward(y, x, conv.weight, None, *slide, (True, True, False))
