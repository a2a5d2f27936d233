"""Trains a method on one task: steps, validation, learning rate and early stopping. Works on every device.

`remnant.accelerated` takes the same steps faster.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant.data import Split, Task
from remnant.evaluation import Evaluation, Loss, task_sums
from remnant.methods import Method
from remnant.options import Positive, number

from .cooperative import Blocking, Work

STEPS_PER_TURN = 200  # steps before other runs may continue


@dataclass(frozen=True)
class Schedule:
    """The epochs, batches and learning rates of one task.

    Without `patience`, or without a validation set, a task trains all epochs, at one rate or at one that falls if the
    method is annealed. With both, `patience` epochs without a lower validation loss divide the rate by `factor`, and the
    task ends once the rate is below `lr_min`. The best model is then restored, as in the published scripts. A method may
    ask to start again at the first rate.
    """

    lr: float
    epochs: Positive
    batch: Positive
    evaluation_batch: Positive = 64
    patience: Positive | None = None
    factor: Annotated[float, number(1, 1000, above=True)] = 2.0
    lr_min: Annotated[float, number(0, 10, above=True)] = 0.0


@dataclass
class TrainingState:
    """The progress of a task between two epochs. A resumed fit needs this and the method's own state."""

    epoch: int = 0
    lr: float | None = None  # the current rate, once training has begun
    best_loss: float = math.inf
    patience: int = 0  # epochs left before the rate falls
    best: dict[str, Tensor] = field(default_factory=dict)  # the best model's state
    over: bool = False

    def update(self, loss: float, network: nn.Module, schedule: Schedule) -> None:
        """Applies early stopping after an epoch with this validation loss."""
        if schedule.patience is None or self.lr is None:
            return
        if loss < self.best_loss:
            self.best_loss, self.patience = loss, schedule.patience
            self.best = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
            return
        self.patience -= 1
        if self.patience <= 0:
            self.lr /= schedule.factor
            self.patience = schedule.patience
            self.over = self.lr < schedule.lr_min

    @classmethod
    def from_state(cls, state: dict[str, Any], device: torch.device) -> Self:
        """Restores the `vars` of a state."""
        return cls(**{**state, "best": {name: tensor.to(device) for name, tensor in state["best"].items()}})


@dataclass(frozen=True)
class EpochDone:
    """The figures of one epoch. Without a validation set `valid_loss` and `valid_accuracy` are NaN."""

    task: int
    epoch: int
    epochs: int
    loss: float
    valid_loss: float
    valid_accuracy: float
    lr: float
    steps: int
    seconds: float


@dataclass(eq=False)
class Validation:
    """The loss and accuracy after every epoch, always on the same examples."""

    method: Method
    splits: Mapping[int, Split]
    batch: int
    fallback: str | None = field(default=None, init=False)  # why a subclass works slower than it could

    def measure(self) -> Work[tuple[float, float]]:
        """The mean loss and accuracy over the examples of all splits. Leaves the network in evaluation mode."""
        self.method.network.eval()
        found = yield from self.evaluate()
        assert found.loss is not None
        sizes = [len(split) for split in self.splits.values()]
        loss, accuracy = (float(np.average(each, weights=sizes)) for each in (found.loss, found.accuracy))
        return loss, accuracy

    def evaluate(self) -> Work[Evaluation]:
        return (yield from evaluate_method(self.method, self.splits, self.batch, F.cross_entropy))


class Steps(ABC):
    """The steps of one task. An epoch has `count` of them; after it `loss` is the sum of the batches' losses."""

    validation: ClassVar[type[Validation]] = Validation  # the validation that goes with these steps

    def __init__(self, method: Method, train: Split, batch: int) -> None:
        self.method, self.train, self.batch = method, train, batch
        self.x, self.y = train.x, train.y
        rows = len(train)
        # A last batch of one row is left out, because it has no statistics to normalise by. Each epoch leaves out another row.
        self.rows = rows - 1 if rows % batch == 1 and batch > 1 and rows > 1 else rows
        self.whole_batches, self.tail = divmod(self.rows, batch)  # tail: the rows of a last, smaller batch
        self.count = self.whole_batches + bool(self.tail)
        self.loss = torch.zeros((), device=method.device)

    @abstractmethod
    def epoch(self) -> Work[None]:
        """Takes one epoch's steps in a new random order."""

    def new_order(self) -> Tensor:
        """The rows of the next epoch, in the order in which the method sees them."""
        return self.method.order(self.train, self.batch)[: self.rows]


class EagerSteps(Steps):
    """Calls `Method.step` for each batch."""

    def epoch(self) -> Work[None]:
        self.loss.zero_()
        for count, part in enumerate(self.new_order().split(self.batch), start=1):
            self.loss += self.method.step(self.x[part], self.y[part])
            if count % STEPS_PER_TURN == 0:
                yield None


@dataclass
class Trainer:
    """Trains a method on one task after another. `remnant.accelerated.FastestTrainer` does it faster."""

    schedule: Schedule
    fallback: str | None = field(default=None, init=False)  # why training is slower than it could be

    def steps(self, method: Method, train: Split) -> Work[Steps]:
        """Prepares the steps of a task."""
        yield from ()
        return EagerSteps(method, train, self.schedule.batch)

    def fit(
        self,
        method: Method,
        number: int,
        task: Task,
        state: TrainingState,
        on_epoch: Callable[[EpochDone, TrainingState], Blocking | None],
    ) -> Work[None]:
        """Trains on task `number`, for which the method has started, until the schedule ends.

        It begins at `state` and updates it after each epoch, before it calls `on_epoch`.
        """
        schedule = self.schedule
        if state.lr is None:
            state.lr, state.patience = schedule.lr, schedule.patience or 0
        steps = yield from self.steps(method, task.train)
        valid = steps.validation(method, method.validation(number, task.valid), schedule.evaluation_batch)
        while state.epoch < schedule.epochs and not state.over:
            start, lr = time.perf_counter(), state.lr
            method.lr.fill_(lr)
            if method.anneal is True:  # a method of a user may have another attribute of that name
                share = (1 + math.cos(math.pi * state.epoch / schedule.epochs)) / 2
                method.lr.mul_(share)
                lr *= share
            method.network.train()
            method.on_epoch_start(state.epoch, schedule.epochs, steps.count)
            yield from steps.epoch()
            starts_again = method.on_epoch_end()
            loss = steps.loss.clone()
            measured = math.nan, math.nan
            if valid.splits:
                measured = yield from valid.measure()
                self.fallback = self.fallback or valid.fallback
                state.update(measured[0], method.network, schedule)
            if starts_again:
                state.lr, state.patience, state.over = schedule.lr, schedule.patience or 0, False
            state.epoch += 1
            mean_loss, seconds = float(loss) / steps.count, time.perf_counter() - start
            done = EpochDone(number, state.epoch, schedule.epochs, mean_loss, *measured, lr, steps.count, seconds)
            yield on_epoch(done, state)
        if state.best:
            method.network.load_state_dict(state.best)


def evaluate_method(
    method: Method, splits: Mapping[int, Split], batch: int, loss: Loss | None = None
) -> Work[Evaluation]:
    """Evaluates a method on several tasks. Yields after each of them, because queueing ten takes the host 0.1 s."""
    method.network.eval()
    sums, sizes = [], []
    for task, split in shuffled(method, splits):
        sums.append(task_sums(method.logits, task, split.x, split.y, batch, loss))
        sizes.append(len(split))
        yield None
    return (yield from arrival(torch.stack(sums), sizes))


def shuffled(method: Method, splits: Mapping[int, Split]) -> Iterator[tuple[int, Split]]:
    """Shuffles the splits if the network normalises by the batch, in the same order every time.

    Data sets are often sorted by class, and normalising a batch of one class would remove what is common to the class.
    """
    by_batch = any(getattr(module, "track_running_stats", True) is False for module in method.network.modules())
    generator = torch.Generator().manual_seed(0)
    for task, split in splits.items():
        if by_batch:
            order = torch.randperm(len(split), generator=generator).to(split.y.device)
            split = Split.of(split.x[order], split.y[order])
        yield task, split


def arrival(sums: Tensor, sizes: list[int]) -> Work[Evaluation]:
    """Yields until the sums of each task have arrived from the device. Returns their means."""
    if sums.is_cuda:
        sums = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True).copy_(sums, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        while not arrived.query():
            yield None
    return Evaluation.of(sums, sizes)
