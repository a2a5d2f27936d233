"""Gradient Projection Memory for Lightning's Trainer: every `trainer.fit` is a task."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import ref

from remnant.memory import GPM

from .padding import Unpadded
from .task_memory import Forward, TaskMemory, at_most, check_function

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    from pytorch_lightning import Callback

LIBRARIES = {"lightning", "pytorch_lightning", "torch"}  # a forward that is defined there is only a placeholder


class GPMCallback(TaskMemory, Callback):
    """Remembers the task of each `trainer.fit`, and protects it in the following ones.

    When `fit` starts, the callback attaches its memory to the optimizers. It projects gradients before Lightning clips them.
    When `fit` ends, it proves that the old tasks were protected (`memory.verify()`) and remembers the new one. The memory is
    part of Lightning's checkpoints. Use one callback for all tasks, with one Trainer or with a new Trainer for each.

    Args:
        memory: A memory to continue with, such as `GPM.load("memory.safetensors", model)`.
        batches: A function (trainer) that returns the batches to remember a task by; the train dataloader by default.
        samples: How many examples of each task to use; all by default. See `GPM.consolidate`.
        forward: A function (module, batch) that calls the network. By default a batch is passed as module(batch),
            module(batch[0]) for a tuple and module(**batch) for a dict.
        restore_best: Whether to load the best weights of the Trainer's ModelCheckpoint before a task is remembered.
        options: The options of `GPM`, such as `threshold` and `exclude`, for a new memory.

    Example:
        >>> gpm = GPMCallback(threshold=0.97)
        >>> trainer = lightning.Trainer(max_epochs=3, callbacks=[gpm])  # doctest: +SKIP
        >>> for loader in tasks:  # doctest: +SKIP
        ...     trainer.fit(model, loader)
    """

    def __init__(
        self,
        memory: GPM | None = None,
        *,
        batches: Callable[[Any], Any] | None = None,
        samples: int | None = None,
        forward: Forward | None = None,
        restore_best: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(memory, samples=samples, forward=forward, **options)
        check_function("batches", batches, "trainer")
        self._batches, self._restore_best = batches, restore_best
        self._saved: Mapping[str, Any] | None = None  # the memory in the checkpoint from which this fit continues
        self._finished = True  # whether the task of the last fit is remembered
        self._trainer: Callable[[], Any] = lambda: None  # the Trainer of the last finished task, if it still exists
        self._steps = 0  # batches of this task
        self._old_best = ""  # the best checkpoint before the task

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Prepares a task. A Trainer counts epochs over all its fits, so without this it would train the first task only."""
        if stage != "fit":
            return
        self._refuse(trainer, pl_module)
        if trainer is self._trainer():
            trainer.fit_loop.epoch_progress.reset()
        self._saved, self._steps, self._finished = None, 0, False

    def _refuse(self, trainer: Any, pl_module: Any) -> None:
        """Finds what would fail only at the end of the task."""
        if getattr(trainer.strategy, "_start_method", "popen") != "popen":
            raise ValueError(
                "This strategy trains in processes that end with fit, and the memory would end with them. Use "
                'strategy="ddp" in a script, or start the script with torchrun.'
            )
        if self._forward is None and type(pl_module).forward.__module__.split(".")[0] in LIBRARIES:
            raise ValueError(
                f"{type(pl_module).__name__} has no forward, which the callback calls to remember a task. Define "
                "forward(self, x), or pass GPMCallback(forward=lambda module, batch: module.net(batch[0]))."
            )
        if self._restore_best and trainer.checkpoint_callback is None:
            raise ValueError("restore_best=True needs a ModelCheckpoint among the callbacks of the Trainer.")
        if trainer is self._trainer() and trainer.max_steps != -1:
            raise ValueError(
                "A Trainer counts max_steps over all its fits. Make a new Trainer for each task, with the same GPMCallback, "
                "or use max_epochs."
            )

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Continues the task of a checkpoint. If the task was finished, the next one begins."""
        state = checkpoint["callbacks"].get(self.state_key)
        if not state or trainer.state.fn != "fit":  # trainer.test(ckpt_path=…) must not change the memory
            return
        self._saved, self._steps = state["memory"], state["steps"]
        if state["finished"]:  # the next task starts with new optimizers, as if the process had gone on
            self._steps = 0
            checkpoint.update(loops=None, optimizer_states=[], lr_schedulers=[])

    def state_dict(self) -> dict[str, Any]:
        """Returns the memory for a checkpoint."""
        if not self._memory:
            return {}
        return {"memory": self.memory.state_dict(), "finished": self._finished, "steps": self._steps}

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Attaches the memory to the optimizers of the task."""
        self.begin_task(pl_module, trainer.optimizers, self._saved)
        self._old_best = getattr(trainer.checkpoint_callback, "best_model_path", "") if self._saved is None else ""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuses several loaders, whose batches need not be those that the network takes."""
        if self._batches is None and isinstance(trainer.train_dataloader, dict | list | tuple):
            raise ValueError(
                "fit has several loaders. Pass GPMCallback(batches=lambda trainer: …) to choose the batches."
            )

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """Projects the gradients in manual optimization, where `training_step` may clip them before the step."""
        if not pl_module.automatic_optimization:
            self.memory.project()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Projects the gradients before Lightning clips them."""
        clips = type(pl_module).configure_gradient_clipping.__module__.split(".")[0] not in LIBRARIES
        if pl_module.automatic_optimization and (trainer.gradient_clip_val or clips):
            self.memory.project()

    def on_train_batch_end(self, *_: Any) -> None:
        """Counts the batches."""
        self._steps += 1

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Remembers the task, with the best weights if that is asked for."""
        if self._restore_best:
            self._load_best(trainer)
        loader = self._batches(trainer) if self._batches else at_most(self._steps, trainer.train_dataloader)
        self.finish_task(Unpadded(_Transferred(loader, trainer)))
        self._finished, self._trainer = True, ref(trainer)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Remembers a task that ended before its checkpoint, but was not remembered in it."""
        if self._saved is not None and not self._finished:
            self.on_train_end(trainer, pl_module)

    def _load_best(self, trainer: Any) -> None:
        best = trainer.checkpoint_callback.best_model_path
        if best == self._old_best:
            raise RuntimeError(
                f"ModelCheckpoint has no checkpoint of this task: its best one is {best!r}, as before. Make a new Trainer and "
                "a new ModelCheckpoint for each task, with the same GPMCallback."
            )
        trainer.strategy.barrier()
        trainer.strategy.load_model_state_dict(trainer.strategy.load_checkpoint(best), strict=True)


class _Transferred:
    """The batches of a loader as `training_step` gets them: on the device, after the module's batch hooks."""

    def __init__(self, loader: Any, trainer: Any) -> None:
        self._loader, self._trainer = loader, trainer

    def __iter__(self) -> Iterator[Any]:
        trainer = self._trainer
        for batch in self._loader:
            batch = trainer.precision_plugin.convert_input(batch)
            batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
            yield trainer.strategy.batch_to_device(batch, dataloader_idx=0)
