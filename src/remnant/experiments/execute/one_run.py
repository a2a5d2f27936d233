"""One run: a method on a stream with one seed, from the first task or a checkpoint to the result."""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from remnant.accelerated import FastestTrainer
from remnant.data import Split, Stream, Task
from remnant.errors import RunError
from remnant.evaluation import AccuracyMatrix, average_accuracy, backward_transfer, learning_accuracy
from remnant.memory import ConsolidationError, StateError, activation_drift
from remnant.methods import Method
from remnant.training import Blocking, EpochDone, RandomState, Schedule, Trainer, TrainingState, Work, evaluate_method

from ..runs import CHECKPOINT_SHAPE, File, RunFolder, check, check_alike, environment, note_code
from .build import build_method

if TYPE_CHECKING:
    from .launch import Plan

DRIFT_EXAMPLES = 1000  # of the test set; a convolutional layer has millions of activations for them


@dataclass(frozen=True)
class Progress:
    """One report to a watcher: an epoch, a finished task with its row of accuracies, the end of the run, or a note."""

    seed: int
    task: int = 0
    tasks: int = 0  # 0 for a note about a run that is not under way
    epoch: EpochDone | None = None
    row: tuple[float, ...] = ()
    note: str = ""
    serious: bool = False  # a note that is shown even with --quiet
    finished: bool = False
    seconds: float = 0.0  # duration of a finished run, including the time before it was interrupted


Watcher = Callable[[Progress], None]


class RunInProgress:
    """A run between its first task and its result. `work()` trains it; the folder's lock must be held."""

    stream: Stream
    method: Method
    tasks: Sequence[Task]
    matrix: AccuracyMatrix  # on test sets
    validation: AccuracyMatrix | None  # the same on validation sets, if every task has one

    def __init__(self, plan: "Plan", folder: RunFolder, device: torch.device, watch: Watcher) -> None:
        self.plan, self.settings, self.folder, self.device, self.watch = plan, plan.settings, folder, device, watch
        self.seed = folder.seed
        self.random = RandomState(self.seed, device)
        self.record_drift = plan.drift
        self.first_weights: dict[str, torch.Tensor] | None = None  # after the first task, if the drift is recorded
        self.seconds = {"train": 0.0, "evaluate": 0.0, "consolidate": 0.0}
        self.lines = 0  # of metrics.jsonl
        self._clock = time.perf_counter()
        self._last_checkpoint = time.monotonic()
        self._diverged = False

    def work(self) -> Work[None]:
        """Learns task after task. Yields while the device works, and yields functions that write files (see `Work`)."""
        self.random.use()
        self.folder.save_execution(self.plan.execution)
        self.stream, self.method = build_method(self.settings, self.seed, self.device)
        self.tasks = self.method.curriculum(self.stream)
        self.matrix = AccuracyMatrix(len(self.stream))
        self.validation = AccuracyMatrix(len(self.stream)) if all(len(task.valid) for task in self.stream) else None
        schedule = Schedule(lr=self.settings.options["lr"], **self.settings.training)
        trainer = FastestTrainer(schedule, self.plan.steps)
        first, training = self._resume(schedule)
        if self.plan.steps == "captured" and self.device.type == "cpu":
            self._note(first, "steps are not captured: CUDA graphs need a GPU, and this run is on the CPU")
        if "patience" in self.settings.training and self.validation is None:
            self._note(first, "no early stopping: without a validation set (stream.valid), tasks train all epochs")
        held_out: list[tuple[Split, Split]] = []  # test and validation sets stay on the device after their task
        for number in range(first, len(self.tasks)):
            task = self.tasks[number].to(self.device)
            if len(self.tasks) < len(self.stream):  # joint training learns the whole stream as one task
                held_out, added = [], list(self.stream)
            else:  # `task` is on the device already, unless the method trains on other data than the stream's
                same = self.tasks[number] is self.stream[number]
                added = [*self.stream[len(held_out) : number], task if same else self.stream[number]]
            held_out += [(each.test.to(self.device), each.valid.to(self.device)) for each in added]
            yield from self._train(trainer, number, task, training)
            self._consolidate(number, task.train)
            row = yield from self._evaluate(held_out, schedule.evaluation_batch)
            if self.record_drift and number == 0 and self.method.ranks():
                weights = self.method.network.state_dict()
                self.first_weights = {name: tensor.detach().clone() for name, tensor in weights.items()}
            training = TrainingState()
            yield self._checkpoint(number + 1, training)
            self.watch(Progress(self.seed, number, len(self.tasks), row=row))
        if self.record_drift and self.method.ranks():
            self._save_drift(self.stream[0].test.to(self.device), schedule.evaluation_batch)
        self._save_result()

    def _train(self, trainer: Trainer, number: int, task: Task, training: TrainingState) -> Work[None]:
        if training.epoch == 0:
            self.method.start(number)
            if self.method.task != number:  # it would train the head of another task
                raise RunError(f"{self.settings.method}: start(task) must call super().start(task).")
        before = trainer.fallback
        self._clock = time.perf_counter()
        yield from trainer.fit(self.method, number, task, training, self._epoch_done)
        self._count_seconds("train")
        if trainer.fallback and trainer.fallback != before:
            self._note(number, trainer.fallback, serious=True)

    def _epoch_done(self, done: EpochDone, training: TrainingState) -> Blocking | None:
        """Records an epoch. Returns a function that writes a checkpoint if one is due."""
        self.folder.record(**{name: value for name, value in vars(done).items() if name != "epochs"})
        self.lines += 1
        self.watch(Progress(self.seed, done.task, len(self.tasks), epoch=done))
        if not math.isfinite(done.loss) and not self._diverged:
            self._diverged = True
            since = f"the loss has been {done.loss} since epoch {done.epoch}"
            self._note(done.task, f"{since}. Try a lower learning rate, and check that the inputs are finite.")
        due = self.plan.checkpoint_every and done.epoch % self.plan.checkpoint_every == 0
        if not due or time.monotonic() - self._last_checkpoint < self.plan.checkpoint_seconds:
            return None
        self._count_seconds("train")
        return self._checkpoint(done.task, training)

    def _consolidate(self, number: int, train: Split) -> None:
        before = dict(vars(self.method))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                self.method.finish(number, train)
            except ConsolidationError as error:
                reason = str(error).replace(", then consolidate again.", ". Try a lower lr.")
                raise RunError(f"Seed {self.seed}, task {number + 1} of {len(self.tasks)}: {reason}") from error
        for warning in caught:
            self._note(number, str(warning.message))
        if lost := self.method.forgotten(before):
            raise RunError(
                f"{self.settings.method} sets self.{lost[0]} in finish() and does not keep it, so a resumed run would end "
                f"differently. Declare it in __init__ with self.keep({lost[0]!r}, …), or compute it in refresh()."
            )
        self._count_seconds("consolidate")

    def _evaluate(self, held_out: Sequence[tuple[Split, Split]], batch: int) -> Work[tuple[float, ...]]:
        """Appends the accuracies on all tasks so far to both matrices. Returns those on test sets."""
        rows = []
        for matrix, splits in zip((self.matrix, self.validation), zip(*held_out, strict=True), strict=True):
            if matrix is not None:
                row = (yield from evaluate_method(self.method, dict(enumerate(splits)), batch)).accuracy
                while matrix.learned + 1 < len(row):  # joint training has no rows before the last
                    matrix.append(np.full(matrix.learned + 1, np.nan))
                matrix.append(row)
                rows.append(tuple(row.tolist()))
        self._count_seconds("evaluate")
        return rows[0]

    def _checkpoint(self, task: int, training: TrainingState) -> Blocking:
        """Returns a function that writes a checkpoint and, between two tasks, the matrix and the ranks.

        It uses the run's own tensors: call it before the run continues.
        """
        state = {
            "run": str(self.folder.relative_path),
            "task": task,
            "lines": self.lines,
            "training": dict(vars(training)),
            "method": self.method.state_dict(),
            "random": self.random.get(),
            "matrix": self.matrix.to_csv(),
            "validation": None if self.validation is None else self.validation.to_csv(),
            "seconds": dict(self.seconds),
            "drift": self.first_weights or {},
        }
        self._last_checkpoint = time.monotonic()
        of_task = (self.matrix, self.method.ranks()) if training.epoch == 0 else ()
        return partial(self.folder.save_checkpoint, state, *of_task)

    def _resume(self, schedule: Schedule) -> tuple[int, TrainingState]:
        """Restores the newest checkpoint. Returns the task and the state to continue from."""
        state, note = self.folder.load_checkpoint()
        if note:
            self._note(0, note, serious=True)
        if state is None:
            (self.folder.path / File.METRICS).unlink(missing_ok=True)
            self.folder.save_environment(environment(self.device, self.folder.settings))  # `create` may run elsewhere
            return 0, TrainingState()
        try:
            training = self._restore(state, schedule)
        except RunError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, StateError) as error:
            raise RunError(
                f"The checkpoint in {self.folder.path} does not fit this release's {self.settings.method} "
                f"({str(error).splitlines()[0]}). Resume with the release that wrote it, or move the folder away."
            ) from error
        task, recorded = state["task"], state["lines"]
        self.lines = self.folder.truncate_metrics((task, training.epoch))
        self._note(task, f"resumed at task {task + 1}, epoch {training.epoch + 1}")
        if self.lines < recorded:
            lost = f"{recorded - self.lines} of {recorded} lines of metrics.jsonl are missing or damaged"
            self._note(task, f"{lost}: the report's curves leave these epochs out", serious=True)
        if other_code := note_code(self.folder, self.device):
            self._note(task, other_code, serious=True)
        return task, training

    def _restore(self, state: dict[str, Any], schedule: Schedule) -> TrainingState:
        """Takes over a checkpoint's state, or raises an error if it cannot be one of this run."""
        check(state, CHECKPOINT_SHAPE)
        if state["run"] != str(self.folder.relative_path):
            raise ValueError(f"it belongs to {state['run']}")
        if state["random"].shape != self.random.get().shape:
            raise RunError(
                f"{self.folder.path} was started on another kind of device than {self.device.type}, which draws other "
                "random numbers. Resume it with --device cuda or cpu, as it was started, or move the folder away."
            )
        task, training = state["task"], TrainingState.from_state(state["training"], self.device)
        if task + bool(training.epoch) > len(self.tasks) or training.epoch > schedule.epochs:
            raise ValueError(f"task {task}, epoch {training.epoch} is beyond the end of the run")
        if not (0 < (training.lr or 0) <= schedule.lr if training.epoch else training == TrainingState()):
            raise ValueError(f"the training state of task {task} is impossible after {training.epoch} epochs")
        matrix = AccuracyMatrix.from_csv(state["matrix"])
        validation = None if state["validation"] is None else AccuracyMatrix.from_csv(state["validation"])
        learned = task if len(self.tasks) == len(self.stream) else task * len(self.stream)
        for saved in (matrix, validation) if self.validation else (matrix,):
            if saved is None or (saved.tasks, saved.learned) != (len(self.stream), learned):
                raise ValueError(f"{saved} is not the accuracy matrix after {learned} of {len(self.stream)} tasks")
        if training.epoch:
            self.method.start(task)
        elif task:
            self.method.task = task - 1  # between two tasks, the method's state is that of the last one
        diverged = any(line.get("loss") is None for line in self.folder.metrics()[-1:])  # its weights may well be NaN
        check_alike(self.method.state_dict(), state["method"], nan=diverged)
        self.method.load_state_dict(state["method"])
        shapes = {name: tensor.shape for name, tensor in self.method.network.state_dict().items()}
        best, first = ({name: x.shape for name, x in weights.items()} for weights in (training.best, state["drift"]))
        # A task may add its own parameters to the network.
        if (best and best != shapes) or not first.items() <= shapes.items():
            raise ValueError("its best or first weights belong to another network")
        self.matrix, self.validation = matrix, validation if self.validation else None
        self.random.set(state["random"])
        self.seconds.update(state["seconds"])
        self.first_weights = state["drift"] or None
        self.record_drift = self.record_drift or self.first_weights is not None
        return training

    def _save_drift(self, test: Split, batch: int) -> None:
        """Records how far the layers drift for test inputs of the first task: the paper's interference activation."""
        # Shuffled, always in the same order: a batch of one class would be normalised away.
        order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))[:DRIFT_EXAMPLES]
        parts = [part for part in order.to(test.x.device).split(batch) if len(part) > 1 or len(order) == 1]
        batches = ((test.x[part], 0) for part in parts)
        try:
            if self.first_weights is None:
                raise ValueError("the run was started without it, and the first task's network is gone")
            found = activation_drift(self.method.network, self.first_weights, batches, self.method.ranks())
        except ValueError as error:
            self._note(len(self.tasks) - 1, f"the drift is not recorded: {error}")
            return
        if histograms := {layer: {"edges": each.edges, "counts": each.counts} for layer, each in found.items()}:
            self.folder.save_drift(histograms)

    def _save_result(self) -> None:
        result = {
            "acc": average_accuracy(self.matrix),
            "bwt": backward_transfer(self.matrix),
            # Settings are chosen by these, because test sets must not decide.
            "validation_acc": average_accuracy(self.validation) if self.validation else None,
            "validation_bwt": backward_transfer(self.validation) if self.validation else None,
            "learning_accuracy": learning_accuracy(self.matrix),
            "seconds": self.seconds,
            "capacity": self.method.capacity,
            "memory_bytes": self.method.nbytes,
            "parameters": sum(p.numel() for p in self.method.network.parameters()),
        }
        self.folder.save_result(result)
        self.folder.clear_checkpoints()
        last, seconds = self.matrix.tasks - 1, sum(self.seconds.values())
        self.watch(Progress(self.seed, last, self.matrix.tasks, finished=True, seconds=seconds))

    def _note(self, task: int, note: str, *, serious: bool = False) -> None:
        self.watch(Progress(self.seed, task, len(self.tasks), note=note, serious=serious))

    def _count_seconds(self, part: str) -> None:
        """Adds the wall time since the last call to one part of the run."""
        now = time.perf_counter()
        self.seconds[part] += now - self._clock
        self._clock = now
