"""One run: a method on a stream with one seed, from the first task to the last, or from where it was cut off."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from remnant.accelerated import Fastest
from remnant.data import Split, Task
from remnant.evaluation import AccuracyMatrix, average_accuracy, backward_transfer, learning_accuracy
from remnant.memory import ConsolidationError, StateError
from remnant.methods import Method
from remnant.training import Blocking, EpochDone, RandomState, Schedule, Trainer, TrainingState, Work, evaluate_in_turns

from ..runs.folder import RunError, RunFolder
from ..runs.provenance import note_code
from ..settings.resolve import Settings
from .drift import Drift
from .factory import build_method

Row = NDArray[np.float64]


@dataclass(frozen=True)
class Progress:
    """What a watcher hears: an epoch, a finished task with its row of accuracies, or a note.

    `tasks` is 0 where there is only something to say of a run, which is not under way.
    """

    seed: int
    task: int = 0
    tasks: int = 0
    epoch: EpochDone | None = None
    row: tuple[float, ...] = ()
    note: str = ""
    serious: bool = False  # of a note: to be heard even by who asked for quiet
    finished: bool = False
    seconds: float = 0.0  # of a finished run: what it took, with what it did before it was cut off


Watcher = Callable[[Progress], None]


class Run:
    """`work()` is a generator: it queues work on the device and lets others go."""

    def __init__(
        self,
        settings: Settings,
        seed: int,
        folder: RunFolder,
        device: torch.device,
        watch: Watcher,
        *,
        checkpoint_every: int = 20,
        checkpoint_seconds: float = 60.0,
        steps: str = "auto",
        drift: bool = False,
    ) -> None:
        """A checkpoint after each task, and after every so many epochs, but not within so many seconds of the last.

        `drift`: also record how far layers drift for the first task (`Drift`).
        """
        self.settings, self.seed, self.folder, self.device, self.watch = settings, seed, folder, device, watch
        self.checkpoint_every, self.checkpoint_seconds, self.steps = checkpoint_every, checkpoint_seconds, steps
        self._last_checkpoint = time.monotonic()
        self.seconds = {"train": 0.0, "evaluate": 0.0, "consolidate": 0.0}
        self.random = RandomState(seed, device)
        self.drift = Drift(asked=drift)
        self._diverged = False
        self.validation: AccuracyMatrix | None = None  # rows like the test sets', where every task holds examples back

    def work(self) -> Work:
        self.random.use()
        stream, method = build_method(self.settings, self.seed, self.device)
        trainer = Trainer(Schedule(lr=self.settings.options["lr"], **self.settings.training), Fastest(self.steps))
        tasks = method.curriculum(stream)
        matrix = AccuracyMatrix(len(stream))
        if all(len(task.valid) for task in stream):
            self.validation = AccuracyMatrix(len(stream))
        first, training, matrix = self._resume(method, matrix)
        if self.steps == "captured" and self.device.type == "cpu":
            self._say(first, len(tasks), "steps are not captured: CUDA graphs need a GPU, and this run is on the CPU")
        if "patience" in self.settings.training and self.validation is None:
            self._say(
                first, len(tasks), "not every task has a validation set (stream.valid): those train all their epochs"
            )
        exams = [self._exam(task) for task in stream[:first]]
        said = ""
        for number in range(first, len(tasks)):
            task = tasks[number].to(self.device)
            joint = len(tasks) < len(stream)
            here = task if tasks[number] is stream[number] else stream[number]  # where it is there already, not twice
            exams += [self._exam(t) for t in (stream if joint else [here])]
            if training.epoch == 0:
                self._start(method, number)
            with self._timed("train") as timer:
                yield from trainer.fit(
                    method, number, task, training, self._epoch_hook(number, len(tasks), method, matrix, timer)
                )
            if trainer.fallback and trainer.fallback != said:  # once, not for each task
                said = trainer.fallback
                self._say(number, len(tasks), said, serious=True)
            with self._timed("consolidate"):
                self._remember(number, len(tasks), method, task.train)
            with self._timed("evaluate"):
                batch = trainer.schedule.evaluation_batch
                row = yield from self._evaluate(method, [test for test, _ in exams], batch)
                self._add_row(matrix, row, joint)
                if self.validation is not None:
                    held_back = yield from self._evaluate(method, [valid for _, valid in exams], batch)
                    self._add_row(self.validation, held_back, joint)
            self.drift.learnt(number, method)
            training = TrainingState()
            yield self._keep_task(number, method, matrix)
            self.watch(Progress(self.seed, number, len(tasks), row=tuple(float(x) for x in row)))
        self._record_drift(method, exams[0][0], trainer.schedule.evaluation_batch, len(tasks))
        self._finish(method, matrix)

    def _start(self, method: Method, task: int) -> None:
        method.start(task)
        if method.task != task:  # it would go on training the head of another task
            raise RunError(f"{self.settings.method}: its start(task) must call super().start(task), and does not.")

    def _exam(self, task: Task) -> tuple[Split, Split]:
        """What stays on the device of a task that was learnt: its test and validation set."""
        return task.test.to(self.device), task.valid.to(self.device)

    def _resume(self, method: Method, matrix: AccuracyMatrix) -> tuple[int, TrainingState, AccuracyMatrix]:
        state, note = self.folder.load_checkpoint()
        if note:
            self._say(0, matrix.tasks, note, serious=True)
        if state is None:
            self.folder.truncate_metrics(lambda line: False)
            return 0, TrainingState(), matrix
        self.seconds.update(state["seconds"])
        task = int(state["task"])
        training = TrainingState.from_state(state["training"], self.device)
        if training.epoch:
            self._start(method, task)
        try:
            method.load_state_dict(state["method"])
        except (KeyError, RuntimeError, StateError) as error:
            raise RunError(
                f"The checkpoint in {self.folder.path} does not fit this release's {self.settings.method} "
                f"({str(error).splitlines()[0]}). Resume with the release that wrote it, or move the folder away."
            ) from error
        self.random.set(state["random"])
        # Checkpoints of releases before had none of these.
        self.drift.load_state_dict(state.get("drift"))
        validation = state.get("validation")
        self.validation = None if validation is None else AccuracyMatrix.from_csv(validation)
        done = (task, training.epoch)
        self.folder.truncate_metrics(lambda line: (line["task"], line["epoch"]) <= done or line["task"] < task)
        self._say(task, matrix.tasks, f"resumed at task {task + 1}, epoch {training.epoch + 1}")
        if other_code := note_code(self.folder, self.device):
            self._say(task, matrix.tasks, other_code, serious=True)
        return task, training, AccuracyMatrix.from_csv(state["matrix"])

    def _checkpoint(self, task: int, training: TrainingState, method: Method, matrix: AccuracyMatrix) -> Blocking:
        """Writes a checkpoint when called. It holds the run's own tensors, so the run must not go on before."""
        state = {
            "task": task,
            "training": training.state_dict(),
            "method": method.state_dict(),
            "random": self.random.get(),
            "matrix": matrix.to_csv(),
            "validation": None if self.validation is None else self.validation.to_csv(),
            "seconds": dict(self.seconds),
            "drift": self.drift.state_dict(),
        }

        def write() -> None:
            self.folder.save_checkpoint(state)
            self._last_checkpoint = time.monotonic()

        return write

    def _epoch_hook(
        self, number: int, tasks: int, method: Method, matrix: AccuracyMatrix, timer: _Timer
    ) -> Callable[[EpochDone, TrainingState], Blocking | None]:
        def epoch_done(done: EpochDone, state: TrainingState) -> Blocking | None:
            self.folder.record(**{k: v for k, v in vars(done).items() if k != "epochs"})
            self.watch(Progress(self.seed, number, tasks, epoch=done))
            if not math.isfinite(done.loss) and not self._diverged:
                self._diverged = True
                self._say(
                    number, tasks, f"the loss is {done.loss} since epoch {done.epoch}: did it diverge? Try a lower lr."
                )
            due = self.checkpoint_every and done.epoch % self.checkpoint_every == 0
            if due and time.monotonic() - self._last_checkpoint >= self.checkpoint_seconds:
                timer.lap()
                return self._checkpoint(number, state, method, matrix)
            return None

        return epoch_done

    def _remember(self, number: int, tasks: int, method: Method, train: Split) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                method.finish(number, train)
            except ConsolidationError as error:
                raise RunError(f"Seed {self.seed}, task {number + 1} of {tasks}: {error}") from error
        for warning in caught:
            self._say(number, tasks, str(warning.message))

    @staticmethod
    def _evaluate(method: Method, exams: list[Split], batch: int) -> Generator[None, None, Row]:
        measured = yield from evaluate_in_turns(method, dict(enumerate(exams)), batch)
        return measured.accuracy

    @staticmethod
    def _add_row(matrix: AccuracyMatrix, row: Row, joint: bool) -> None:
        while joint and matrix.learned < matrix.tasks - 1:
            matrix.append(np.full(matrix.learned + 1, np.nan))  # learnt together: there is no row before the last
        matrix.append(row)

    def _keep_task(self, number: int, method: Method, matrix: AccuracyMatrix) -> Blocking:
        """Writes all that is known after a task when called; the checkpoint last."""
        ranks = method.ranks()
        checkpoint = self._checkpoint(number + 1, TrainingState(), method, matrix)

        def write() -> None:
            self.folder.save_matrix(matrix)
            if ranks:
                self.folder.save_ranks(ranks)
            checkpoint()

        return write

    def _record_drift(self, method: Method, test: Split, batch: int, tasks: int) -> None:
        try:
            if histograms := self.drift.histograms(method, test, batch):
                self.folder.save_drift(histograms)
        except ValueError as error:
            self._say(tasks - 1, tasks, f"the drift is not recorded: {error}")

    def _finish(self, method: Method, matrix: AccuracyMatrix) -> None:
        validation = self.validation
        self.folder.save_result(
            {
                "acc": average_accuracy(matrix),
                "bwt": backward_transfer(matrix),
                # On what was held back from training: to choose settings by, which test sets are not for.
                "validation_acc": None if validation is None else average_accuracy(validation),
                "validation_bwt": None if validation is None else backward_transfer(validation),
                "learning_accuracy": learning_accuracy(matrix),
                "seconds": dict(self.seconds),
                "capacity": method.capacity,
                "memory_bytes": method.nbytes,
                "parameters": sum(p.numel() for p in method.network.parameters()),
            }
        )
        self.folder.clear_checkpoints()
        took = sum(self.seconds.values())
        self.watch(Progress(self.seed, matrix.tasks - 1, matrix.tasks, finished=True, seconds=took))

    def _say(self, task: int, tasks: int, note: str, *, serious: bool = False) -> None:
        self.watch(Progress(self.seed, task, tasks, note=note, serious=serious))

    def _timed(self, what: str) -> _Timer:
        return _Timer(self.seconds, what)


class _Timer:
    """Adds the wall time of a `with` block to an account."""

    def __init__(self, account: dict[str, float], what: str) -> None:
        self.account, self.what = account, what

    def __enter__(self) -> _Timer:
        self.start = time.perf_counter()
        return self

    def lap(self) -> None:
        """Adds the time so far."""
        now = time.perf_counter()
        self.account[self.what] += now - self.start
        self.start = now

    def __exit__(self, *_: object) -> None:
        self.lap()
