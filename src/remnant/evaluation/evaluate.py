"""Accuracy and loss of a model on several tasks, with one wait for the device."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


class Split(Protocol):
    """Anything with inputs `x` (N, …) and labels `y` (N,)."""

    @property
    def x(self) -> Tensor: ...

    @property
    def y(self) -> Tensor: ...


Logits = Callable[[Tensor, int], Tensor]
"""`logits(x, task)`: scores (N, classes). A `Network` is one."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""`loss(logits, y)`: the mean over the examples given, as `F.cross_entropy` gives it. These may be several batches'."""

AT_ONCE = 2**22  # logits kept until they are counted: the dozen small kernels this takes are shared by many batches


@dataclass(frozen=True)
class Evaluation:
    """One entry per task, in the order given: the accuracy in [0, 1], and the mean loss over examples if asked for."""

    accuracy: NDArray[np.float64]
    loss: NDArray[np.float64] | None


class Pending:
    """An evaluation queued on the device. `result` waits for it; `ready` says whether it would have to."""

    def __init__(self, sums: Tensor, sizes: list[int], with_loss: bool) -> None:
        self._sizes, self._with_loss = sizes, with_loss
        self._arrived: torch.cuda.Event | None = None
        self._sums = sums
        if sums.device.type == "cuda":
            self._sums = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True).copy_(sums, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    @property
    def ready(self) -> bool:
        return self._arrived is None or self._arrived.query()

    def result(self) -> Evaluation:
        if self._arrived is not None:
            self._arrived.synchronize()  # the one wait
        means = self._sums.cpu().numpy() / np.asarray(self._sizes, dtype=np.float64)[:, None]
        return Evaluation(accuracy=means[:, 0].copy(), loss=means[:, 1].copy() if self._with_loss else None)


def evaluate(
    logits: Logits,
    splits: Iterable[Split] | Mapping[int, Split],
    *,
    batch_size: int = 64,
    loss: Loss | None = None,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> Evaluation:
    """Runs `logits` once over each split; counts stay on the device, and the host waits for them once, at the end.

    Args:
        logits: called as `logits(x, task)`. A module is put in evaluation mode meanwhile; for a plain function around
            a module, that is up to the caller.
        splits: those of task 0, 1, … in order (a generator may make them one at a time), or task → split for some.
        batch_size: matters for the result where a network normalises by the batch (`norm="batch"`; the paper's: 64).
        loss: also take the mean of this loss, in the same pass.
        device: where to move each batch; by default it stays where its split is.
        generator: shuffle each split with it, as the paper's tables did; for a network that normalises by the batch and
            a split sorted by class.
    """
    pending = queue_evaluation(logits, splits, batch_size=batch_size, loss=loss, device=device, generator=generator)
    return pending.result()


@torch.no_grad()
def queue_evaluation(
    logits: Logits,
    splits: Iterable[Split] | Mapping[int, Split],
    *,
    batch_size: int = 64,
    loss: Loss | None = None,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> Pending:
    """`evaluate` without the wait, for whoever has something else to do meanwhile."""
    sums, sizes = sum_up(logits, splits, batch_size=batch_size, loss=loss, device=device, generator=generator)
    return Pending(sums, sizes, loss is not None)


@torch.no_grad()
def sum_up(
    logits: Logits,
    splits: Iterable[Split] | Mapping[int, Split],
    *,
    batch_size: int = 64,
    loss: Loss | None = None,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, list[int]]:
    """What `Pending` takes: each split's correct answers and summed loss, (splits, 2), on the device; and its size.

    Without a generator, and with splits on the device, it can be captured into a CUDA graph, if `logits` and `loss` can.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be positive, not {batch_size}.")
    numbered = splits.items() if isinstance(splits, Mapping) else enumerate(splits)
    sizes: list[int] = []
    sums: list[Tensor] = []
    with _evaluation_mode(logits):
        for task, split in numbered:
            x, y = split.x, split.y
            _check(task, x, y)
            sizes.append(len(x))
            batches = _batches(x, y, batch_size, generator)
            sums.append(_sums(logits, task, batches, loss, device if device is not None else x.device))
    if not sums:
        raise ValueError("Nothing to evaluate: no splits were given.")
    return torch.stack(sums), sizes


def _sums(
    logits: Logits,
    task: int,
    batches: Iterable[tuple[Tensor, Tensor]],
    loss: Loss | None,
    device: torch.device | str,
) -> Tensor:
    """How many examples are right and, in the same tensor (so that it travels as one), their summed loss."""
    sums = torch.zeros(2, dtype=torch.float64, device=device)  # counts are exact in float64
    scored: list[tuple[Tensor, Tensor]] = []
    numbers = 0
    for inputs, labels in batches:
        x, y = _moved(inputs, device), _moved(labels, device)
        scores = logits(x, task)
        if scores.ndim != 2 or len(scores) != len(y):
            raise ValueError(
                f"Task {task}: {len(y)} inputs gave logits of shape {tuple(scores.shape)}, not (N, classes)."
            )
        scored.append((scores, y))
        numbers += scores.numel()
        if numbers >= AT_ONCE:
            _count(scored, loss, sums)
            scored, numbers = [], 0
    if scored:
        _count(scored, loss, sums)
    return sums


def _count(scored: list[tuple[Tensor, Tensor]], loss: Loss | None, sums: Tensor) -> None:
    """Adds what these batches' scores, each with their labels, are worth."""
    scores, y = (torch.cat(tensors) for tensors in zip(*scored, strict=True))
    best, predicted = scores.max(dim=1)
    # A network that has diverged predicts nothing; without this its NaN would pass for a vote for class 0.
    sums[0] += ((predicted == y) & ~best.isnan()).sum()
    if loss is not None:
        sums[1] += loss(scores, y) * len(y)


def _batches(
    x: Tensor, y: Tensor, batch_size: int, generator: torch.Generator | None
) -> Iterator[tuple[Tensor, Tensor]]:
    starts = list(range(0, len(x), batch_size))
    if len(starts) > 1 and len(x) - starts[-1] == 1:
        starts.pop()  # an example left alone joins the batch before: the statistics of a batch of one do not exist
    ends = [*starts[1:], len(x)]
    if generator is None:
        for start, end in zip(starts, ends, strict=True):
            yield x[start:end], y[start:end]
        return
    order = torch.randperm(len(x), generator=generator, device=generator.device)
    order_x, order_y = _moved(order, x.device), _moved(order, y.device)
    for start, end in zip(starts, ends, strict=True):
        yield x[order_x[start:end]], y[order_y[start:end]]


def _moved(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Queued on the way to a device; waited for on the way to the CPU, where it could be read before it has come."""
    return tensor.to(device, non_blocking=torch.device(device).type != "cpu")


def _check(task: int, x: Tensor, y: Tensor) -> None:
    if y.ndim != 1 or len(x) != len(y):
        raise ValueError(
            f"Task {task}: y must hold one label per input, got x {tuple(x.shape)} and y {tuple(y.shape)}."
        )
    if len(x) == 0:
        raise ValueError(f"Task {task} has no examples to evaluate on.")


@contextmanager
def _evaluation_mode(logits: Logits) -> Iterator[None]:
    """Evaluation mode for a module, then each part back as it was: some may have been frozen on purpose."""
    if not isinstance(logits, nn.Module):
        yield
        return
    training = [(module, module.training) for module in logits.modules()]
    logits.eval()
    try:
        yield
    finally:
        for module, was in training:
            module.training = was
