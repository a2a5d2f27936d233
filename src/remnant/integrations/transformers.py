"""Gradient Projection Memory for the Trainer of HuggingFace transformers: every `trainer.train()` is a task."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from remnant.memory import GPM, codec

from .padding import Unpadded
from .task_memory import Forward, TaskMemory, at_most, check_function

FILE = "memory.safetensors"


class GPMTrainerCallback(TaskMemory, TrainerCallback):
    """Remembers the task of each `trainer.train()`, and protects it in the following ones.

    When training starts, the callback attaches its memory to the optimizer. `max_grad_norm` clips what is left of the gradient
    after the projection. When training ends, with the best weights if `load_best_model_at_end` is set, the callback proves
    that the old tasks were protected (`memory.verify()`) and remembers the new one. Padding is not remembered. Every
    checkpoint folder gets the memory as `memory.safetensors`, and `resume_from_checkpoint` continues with it. Use one callback
    for all tasks.

    Args:
        memory: A memory to continue with, such as `GPM.load("memory.safetensors", model)`.
        batches: A function without arguments that returns the batches to remember a task by; the Trainer's train dataloader by
            default.
        samples: How many examples of each task to use; all by default. See `GPM.consolidate`.
        forward: A function (model, batch) that calls the network; model(**batch) by default.
        options: The options of `GPM`, such as `threshold` and `exclude`, for a new memory.

    Example:
        >>> gpm = GPMTrainerCallback(threshold=0.97)
        >>> for dataset in tasks:  # doctest: +SKIP
        ...     Trainer(model, args, train_dataset=dataset, callbacks=[gpm]).train()
    """

    def __init__(
        self,
        memory: GPM | None = None,
        *,
        batches: Callable[[], Any] | None = None,
        samples: int | None = None,
        forward: Forward | None = None,
        **options: Any,
    ) -> None:
        super().__init__(memory, samples=samples, forward=forward, **options)
        check_function("batches", batches)
        self._batches = batches
        self._held: tuple[Any, float] | None = None  # the Trainer's arguments and max_grad_norm, while it must not clip

    def on_train_begin(self, args: Any, state: Any, control: Any, **its: Any) -> None:
        """Attaches the memory to the optimizer of the task."""
        self._give_back()  # an error may have ended the last training between on_step_begin and its step
        self.begin_task(its["model"], [its["optimizer"]], self._saved(args, state) if state.global_step else None)

    def _saved(self, args: Any, state: Any) -> Any:
        """The memory in the checkpoint folder that is resumed from. The Trainer does not tell which one that is."""
        named = [Path(args.resume_from_checkpoint)] if isinstance(args.resume_from_checkpoint, str) else []
        for folder in [*named, _folder(args, state)]:
            if (folder / FILE).is_file():
                return codec.read(folder / FILE)
        if self._memory is None:
            raise FileNotFoundError(
                f"Training resumes at step {state.global_step}, and there is no {_folder(args, state) / FILE}. If the "
                f"checkpoint is elsewhere, pass GPMTrainerCallback(GPM.load(checkpoint + '/{FILE}', model))."
            )
        return None

    def on_step_begin(self, args: Any, state: Any, control: Any, **its: Any) -> None:
        """Keeps the Trainer from clipping the whole gradient, which it would do before any callback could project it."""
        self._give_back()
        self._held, args.max_grad_norm = (args, args.max_grad_norm), 0.0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **its: Any) -> None:
        """Projects the gradients, then clips them."""
        self._give_back()
        if args.max_grad_norm:
            self.memory.clip_grad_norm_(args.max_grad_norm)

    def _give_back(self) -> None:
        if self._held:
            (args, max_grad_norm), self._held = self._held, None
            args.max_grad_norm = max_grad_norm

    def on_save(self, args: Any, state: Any, control: Any, **its: Any) -> None:
        """Adds the memory to the checkpoint folder."""
        if args.should_save:
            self.memory.save(_folder(args, state) / FILE)

    def on_train_end(self, args: Any, state: Any, control: Any, **its: Any) -> None:
        """Remembers the task."""
        taken = state.global_step * args.gradient_accumulation_steps
        loader = self._batches() if self._batches else at_most(taken, its["train_dataloader"])
        self.finish_task(Unpadded(loader))


def _folder(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
