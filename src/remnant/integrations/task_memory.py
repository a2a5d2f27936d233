"""What all callbacks share: one memory, which is attached in every task and grows at its end."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from remnant.memory import GPM, LeakError, Verification

Forward = Callable[[nn.Module, Any], object]
REMEMBERED: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()  # model → tasks that a callback has remembered


class TaskMemory:
    """The memory of a callback. It is made for the model of the first task.

    Args:
        memory: A memory to continue with, such as `GPM.load("memory.safetensors", model)`.
        samples: How many examples of each task to use; all by default. See `GPM.consolidate`.
        forward: A function (model, batch) that calls the model. See `GPM.consolidate`.
        options: The options of `GPM`, such as `threshold` and `exclude`, for a new memory.
    """

    def __init__(
        self, memory: GPM | None = None, *, samples: int | None = None, forward: Forward | None = None, **options: Any
    ) -> None:
        if memory is not None and options:
            raise ValueError(f"This memory has its own options. Leave out {', '.join(options)}.")
        if options.get("own_rank"):
            raise ValueError(
                "own_rank adds parameters to the model, and a callback makes its memory after the optimizer. Make the memory "
                "before you train, and pass it: memory=GPM(model, recall=True, own_rank=…)."
            )
        if samples is not None and (type(samples) is not int or samples < 1):
            raise ValueError(f"samples is {samples!r}: it must be a positive whole number, or None for all.")
        check_function("forward", forward, "model", "batch")
        signature(GPM).bind(None, **options)  # an unknown option is an error now, not when training starts
        self._memory, self._options = memory, options
        self._samples, self._forward = samples, forward
        self._model: nn.Module | None = None  # that of the current task
        self.verification: Verification | None = None
        """What `memory.verify()` found at the end of the last task, before the task was remembered."""

    @property
    def memory(self) -> GPM:
        """The memory. It exists as soon as the first task starts.

        Raises:
            RuntimeError: If no task has started yet.
        """
        if self._memory is None:
            raise RuntimeError(
                "There is no memory yet. It is made for the model of the first task, when training starts."
            )
        return self._memory

    def begin_task(self, model: nn.Module, optimizers: Iterable[Any], saved: Mapping[str, Any] | None = None) -> None:
        """Attaches the memory to the optimizers of a task. `saved` is the memory's state, if the task continues."""
        if self._memory is None:
            self._memory = GPM(model, **self._options)
        self._model = model
        self._memory.detach()  # a task that failed may have left its optimizers
        try:
            for optimizer in optimizers:
                self._memory.attach(optimizer)
        except ValueError as error:
            error.add_note("A callback remembers one model. Pass the same model in every task, or make a new callback.")
            raise
        if saved is not None:
            self._check_tasks(saved["tasks"])
            self._memory.load_state_dict(saved)
        elif len(self._memory):
            self._check_weights()
        elif model in REMEMBERED:
            warnings.warn(
                f"Another {type(self).__name__} has remembered {REMEMBERED[model]} task(s) of this model, which this new one "
                "does not protect. Make the callback once, before the loop over the tasks, and pass that object each time.",
                stacklevel=2,
            )

    def finish_task(self, batches: Any) -> None:
        """Proves that the old tasks were protected, remembers this one, and lets go of its optimizers."""
        self.verification = self.memory.verify()
        self.memory.consolidate(batches, samples=self._samples, forward=self._forward)
        self.memory.detach()
        if self._model is not None:
            REMEMBERED[self._model] = len(self.memory)

    def _check_tasks(self, saved: int) -> None:
        """Refuses the checkpoint of an earlier task: the memory would forget the tasks since then."""
        if saved < len(self.memory):
            raise ValueError(
                f"This is the checkpoint of an earlier task: its memory holds {saved} task(s), and this callback has "
                f"remembered {len(self.memory)}. Start the task without a checkpoint, and keep each task's checkpoints in a "
                "folder of its own. To go back to the earlier task, make a new callback."
            )

    def _check_weights(self) -> None:
        """Refuses weights of another time: they would not fit the memory."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # old tasks may have drifted, as the last task's end has shown
                self.memory.verify()
        except LeakError as error:
            error.add_note(
                "This happened before the first step of the task, so the weights were changed since the last task was "
                "remembered. Testing with a checkpoint (ckpt_path=…) loads its weights into the model, for example."
            )
            raise


def check_function(name: str, function: object, *arguments: str) -> None:
    """Refuses a function that could not be called with these arguments, which would be noticed only after training."""
    if function is None:
        return
    expected = f"{name} must be a function of ({', '.join(arguments)})"
    if not callable(function):
        raise ValueError(f"{expected}, and it is {function!r:.60}.")
    try:
        form = signature(function)
    except ValueError:  # some functions that are written in C do not tell
        return
    try:
        form.bind(*arguments)
    except TypeError:
        raise ValueError(f"{expected}, and this one takes {form}.") from None


def at_most(count: int, batches: Any) -> Any:
    """Limits a loader whose length is unknown: it may never end."""
    try:
        len(batches)
    except TypeError:
        return islice(batches, count)
    return batches
