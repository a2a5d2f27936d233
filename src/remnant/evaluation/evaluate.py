"""Accuracy and loss of a model on several tasks, with one wait for the device."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

LOGITS_AT_ONCE = 2**22  # logits kept until they are counted: many batches share the dozen small kernels this takes


class Examples(Protocol):
    """Inputs `x` (N, …) and labels `y` (N,)."""

    @property
    def x(self) -> Tensor: ...

    @property
    def y(self) -> Tensor: ...


Logits = Callable[[Tensor, int], Tensor]  # (x, task) → scores (N, classes); a `Network` is one
Loss = Callable[[Tensor, Tensor], Tensor]  # (logits, y) → the mean over these examples, as F.cross_entropy
Tasks = Iterable[Examples] | Mapping[int, Examples]  # the examples of tasks 0, 1, …, or task → examples


@dataclass(frozen=True)
class Evaluation:
    """The accuracy of each task as a fraction, in the given order, and the mean loss if a loss was given."""

    accuracy: NDArray[np.float64]
    loss: NDArray[np.float64] | None

    @classmethod
    def of(cls, sums: Tensor, sizes: list[int]) -> Self:
        """Divides the sums of each task (`task_sums`) by its number of examples. Waits for the device."""
        means = sums.cpu().numpy() / np.asarray(sizes, dtype=np.float64)[:, None]
        return cls(means[:, 0].copy(), means[:, 1].copy() if means.shape[1] > 1 else None)


def evaluate(logits: Logits, examples: Tasks, *, batch_size: int = 64, loss: Loss | None = None) -> Evaluation:
    """Evaluates a model on several tasks in one pass. The host waits for the device once, at the end.

    Args:
        logits: called as `logits(x, task)`. A module is put in evaluation mode for the duration of the call.
        examples: the examples of tasks 0, 1, … in order, or task → examples. A generator may make them, or move them to
            the model's device, one task at a time.
        batch_size: affects the result of networks that normalise by the batch (`norm="batch"`). For these, shuffle
            examples that are sorted by class.
        loss: a loss whose mean is computed in the same pass.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be positive, not {batch_size}.")
    sizes: list[int] = []
    sums: list[Tensor] = []
    with _evaluation_mode(logits):
        for task, part in examples.items() if isinstance(examples, Mapping) else enumerate(examples):
            x, y = part.x, part.y
            if y.ndim != 1 or len(x) != len(y):
                shapes = f"x {tuple(x.shape)} and y {tuple(y.shape)}"
                raise ValueError(f"Task {task}: y must hold one label per input, got {shapes}.")
            if len(x) == 0:
                raise ValueError(f"Task {task} has no examples to evaluate on.")
            sizes.append(len(x))
            sums.append(task_sums(logits, task, x, y, batch_size, loss))
    if not sums:
        raise ValueError("Nothing to evaluate: no examples were given.")
    return Evaluation.of(torch.stack(sums), sizes)


@torch.no_grad()
def task_sums(logits: Logits, task: int, x: Tensor, y: Tensor, batch_size: int, loss: Loss | None = None) -> Tensor:
    """The number of correct answers and, with a loss, its sum, on the device. A CUDA graph can capture this."""
    sums = torch.zeros(1 if loss is None else 2, dtype=torch.float64, device=x.device)  # counts are exact in float64
    whole, rest = divmod(len(x), batch_size)
    sizes = [batch_size] * whole + [rest] * (rest > 0)
    if whole and rest == 1:  # a single last example joins the batch before: a batch of one has no statistics
        sizes[-2:] = [batch_size + 1]
    scored: list[tuple[Tensor, Tensor]] = []
    kept = 0
    for batch, labels in zip(x.split(sizes), y.split(sizes), strict=True):
        scores = logits(batch, task)
        if scores.ndim != 2 or len(scores) != len(labels):
            shape = tuple(scores.shape)
            raise ValueError(f"Task {task}: {len(labels)} inputs gave logits of shape {shape}, not (N, classes).")
        scored.append((scores, labels))
        kept += scores.numel()
        if kept >= LOGITS_AT_ONCE:
            _count(scored, loss, sums)
            scored, kept = [], 0
    if scored:
        _count(scored, loss, sums)
    return sums


def _count(scored: list[tuple[Tensor, Tensor]], loss: Loss | None, sums: Tensor) -> None:
    scores, y = (torch.cat(tensors) for tensors in zip(*scored, strict=True))
    best, predicted = scores.max(dim=1)
    # The scores of a diverged network are NaN, which would otherwise count as a vote for class 0.
    sums[0] += ((predicted == y) & ~best.isnan()).sum()
    if loss is not None:
        sums[1] += loss(scores, y) * len(y)


@contextmanager
def _evaluation_mode(logits: Logits) -> Iterator[None]:
    """Puts a module in evaluation mode, and restores each part afterwards: some parts may be frozen on purpose."""
    modes: dict[nn.Module, bool] = {}
    if isinstance(logits, nn.Module):
        modes = {module: module.training for module in logits.modules()}
        logits.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
