"""Gradient Projection Memory for a model: Algorithm 1 of the paper, without the training loop."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor, nn

from . import copies, display, state
from .attachment import Attachment
from .audit import preconditions as checks
from .audit.state import Buffers
from .audit.verification import Verifier
from .constraint import Constraint
from .discovery import Protection
from .loop import Loop
from .loss import Loss, usual_loss
from .recall import Recall, Recognition
from .record import recorder
from .record.consolidation import Growth
from .record.recorder import Forward
from .remember import all_or_nothing, remember
from .report import LayerReport, MemoryReport, Verification
from .subspace import RANK_RULES, Subspace
from .threshold import ThresholdSetting, parse_threshold

CHOICES = {
    "bias": ("augment", "freeze", "free"),
    "lora": (None, "inputs"),
    "norm": ("freeze", "free", "per-task"),
    "rank_rule": RANK_RULES,
    "unsupported": ("error", "freeze", "free"),
}


class GPM(Loop):
    """Remembers the subspace of inputs that each task used in each layer, and keeps later steps out of it.

    For a layer with weight W, value W₀ at the start of the task and remembered directions M, every step of an attached
    optimizer keeps W·M = W₀·M: the gradient loses its part inside the subspace, ∇W ← ∇W − (∇W·M)·Mᵀ (Eq. 6–7), and so does
    the step itself. `len(memory)` is the number of remembered tasks.

    Args:
        model: The network. Wrappers of torch.compile and DistributedDataParallel are looked through. A model that FSDP2 or
            ColwiseParallel has sharded is protected shard by shard; all ranks then call the methods together.
        threshold: ε of Eq. 5 and 9. A number; `{"start": ε₀, "step": δ}` for ε₀ + δ·t at task t; `{pattern: ε}` by layer
            name; or a function (layer, task) → ε.
        protect: Patterns of the modules or parameters to protect; all by default.
        exclude: Patterns of those to leave free.
        bias: "augment" protects it as the weight of an input of 1; "freeze" fixes it after the first task; "free" does not.
        norm: "freeze" fixes the affine parameters and running statistics of normalisation layers after the first task;
            "free" does not. "per-task" gives each task its own; read them with `recall`.
        rank_rule: "paper" for Eq. 5; "authors" for the published scripts, with one direction fewer in the first task;
            "ranked" for TRGP's rule, which adds more (see `Subspace.grow`).
        unsupported: What to do with parameters, uses of a weight and buffers that no rule covers: "error" (for buffers, a
            warning), "freeze" (after the first task) or "free".
        recall: Whether to keep what `recall` needs: the order of the directions, and each task's unprotected tensors.
        lora: "inputs" for a peft model: A of each LoRA adapter stays outside the memory of its layer's inputs, B is free, and
            `consolidate` adds the adapter to the layer's weight and starts a new one. None treats A and B as any layers.
        sketch: For a layer with at least twice as many inputs n, `consolidate` keeps n·sketch numbers instead of n². The
            directions still hold the share ε; there may be a few more of them. Choose twice the directions of one task.

    Raises:
        UnsupportedError: If the model has parameters that no rule covers, or nothing to protect.
        ValueError: If a pattern matches nothing, or a threshold is not in (0, 1].

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        >>> memory = GPM(model, threshold=0.97)
        >>> optimizer = memory.attach(torch.optim.SGD(model.parameters(), lr=0.1))
        >>> added = memory.consolidate([torch.randn(20, 2) @ torch.randn(2, 8)])  # after training a task as usual
        >>> len(memory)
        1
    """

    def __init__(
        self,
        model: nn.Module,
        threshold: ThresholdSetting = 0.97,
        *,
        protect: Iterable[str] | None = None,
        exclude: Iterable[str] = (),
        bias: str = "augment",
        norm: str = "freeze",
        rank_rule: str = "paper",
        unsupported: str = "error",
        recall: bool = False,
        lora: str | None = None,
        sketch: int | None = None,
    ) -> None:
        options = {"bias": bias, "lora": lora, "norm": norm, "rank_rule": rank_rule, "unsupported": unsupported}
        for option, value in options.items():
            if value not in CHOICES[option]:
                raise ValueError(f"{option}={value!r}: choose one of {', '.join(map(repr, CHOICES[option]))}.")
        if norm == "per-task" and not recall:
            raise ValueError('norm="per-task" needs recall=True: only `recall` brings back the norms of an old task.')
        if lora and recall:
            raise ValueError(
                'lora="inputs" cannot be combined with recall=True. To get the network of a task back, save its adapter '
                "before `consolidate`."
            )
        if sketch is not None and (type(sketch) is not int or sketch < 1):
            raise ValueError(
                f"sketch is {sketch!r}: it must be a positive whole number, or None for exact Gram matrices."
            )
        parsed = parse_threshold(threshold)
        self._protection = Protection(
            model,
            protect,
            exclude,
            bias=bias,
            norm=norm,
            unsupported=unsupported,
            ordered=recall,
            lora=lora,
            sketch=sketch,
        )
        self._model = self._protection.model
        self._threshold_given = threshold
        self._threshold = parsed.for_layers([weight.name for weight in self._protection.weights])
        self._rank_rule, self._unsupported = rank_rule, unsupported
        self._growth: Growth | None = None  # replaces the rank rule
        patterns = {"protect": self._protection.protect, "exclude": self._protection.exclude}
        self._settings = {"threshold": parsed.setting, **patterns, **options, "recall": recall, "sketch": sketch}
        self._tasks = 0
        self._constraint = Constraint(self._protection)
        self._buffers = Buffers(self._protection)
        self._verifier = Verifier(self._protection, self._constraint, self._buffers)
        self._recall = Recall(self._protection, self._constraint) if recall else None
        self._attached: list[Attachment] = []
        self._lock = Lock()  # two threads may not change a memory at once

    def __len__(self) -> int:
        return self._tasks

    def __bool__(self) -> bool:
        return True  # `if memory:` asks whether there is a memory, not whether it has learnt a task yet

    __repr__ = display.text
    _repr_html_ = display.html
    __getstate__ = copies.pack
    __setstate__ = copies.unpack
    if not TYPE_CHECKING:  # which would accept any name
        __getattr__ = copies.unpack_late

    @property
    def subspaces(self) -> Mapping[str, Subspace | list[Subspace]]:
        """Layer name → its subspace; for a grouped layer, a list with one per group."""
        weights = self._protection.weights
        return MappingProxyType({w.name: w.subspaces[0] if w.view.groups == 1 else w.subspaces[:] for w in weights})

    def _check_model(self) -> None:
        if self._constraint.unsettled:
            self._constraint.settle()
        checks.check_model(self._protection)
        for attachment in self._attached:
            attachment.check()

    def consolidate(
        self,
        batches: Any,
        *,
        samples: int | None = None,
        layer_samples: Mapping[str, int] | None = None,
        forward: Forward | None = None,
        recall: bool | Loss = False,
    ) -> dict[str, int]:
        """Remembers a task: streams its batches through the model and grows all subspaces (lines 13–22; Eq. 5, 8, 9).

        Args:
            batches: A DataLoader or another series of batches, or one tensor or dict.
            samples: How many examples to use, drawn evenly with a fixed seed; all by default.
            layer_samples: Pattern of layer names → how many examples of each batch to use there. A convolution sees many
                positions of each example, so a few are enough.
            forward: A function (model, batch) that calls the model; needed if model(batch), model(batch[0]) for a tuple
                and model(**batch) for a dict are not right.
            recall: True to measure the loss as trained and as recalled, for `report().truncations`; or a function
                (what the model returns, batch) → loss. The batches are then read three times.

        Returns:
            Layer → the number of added directions.

        Raises:
            ConsolidationError: If the inputs of a layer could not be recorded. After any error or interrupt, the memory and
                the model are as they were before.
        """
        self._check_model()
        loss = usual_loss if recall is True else recall
        counts = (samples, layer_samples or {})
        with self._lock, all_or_nothing(self) as weights:
            return remember(self, batches, *counts, forward or recorder.call, weights, loss or None)

    def _recalling(self) -> Recall:
        if self._recall is None:
            raise RuntimeError("This memory cannot recall: make it with GPM(model, recall=True).")
        return self._recall

    def recall(self, task: int) -> AbstractContextManager[None]:
        """In the block, the model is the network of an old task: its outputs are those it had then, for every input.

        Every protected weight is read as W·M_t·M_tᵀ, where M_t are the directions remembered up to the task, and every other
        trained tensor has the task's own value. The block is for reading; steps in it are refused.
        """
        return self._recalling().reading(task)

    def recalled(self, task: int) -> dict[str, Tensor]:
        """Returns the `state_dict` of an old task's network, to load into a copy of the model."""
        with self.recall(task):
            return copy.deepcopy(self._model.state_dict())

    @contextmanager
    def recalling(self) -> Iterator[None]:
        """Trains what the truncation of the last task costs away.

        In the block, the model is the last task's network as it will be recalled, and steps move only the directions that
        are new with the task, so no earlier task changes.
        """
        with self._recalling().training():
            yield
        self._verifier.remember_again()

    def which_task(self, batch: Any, *, forward: Forward | None = None) -> Recognition:
        """Names the task of each example by its inputs: the smallest residual outside a task's own directions.

        It reads the inputs of the first protected layer. The confidence goes from 0 (two tasks fit as well) to 1.
        """
        return self._recalling().recognise(batch, forward or recorder.call)

    def report(self) -> MemoryReport:
        """Returns how full the memory is: capacity, rank and directions per task of each layer, and how many tasks fit."""
        weights = self._protection.weights
        layers = tuple(LayerReport(w.name, w.capacity, w.rank, tuple(w.added)) for w in weights)
        records = self._recall.tasks if self._recall else []
        subspaces = [
            each for owner in (*(w.subspaces for w in weights), *(r.inputs for r in records)) for each in owner
        ]
        tensors = [tensor for record in records for tensor in record.own.values()]
        nbytes = sum(each.nbytes for each in subspaces) + sum(tensor.nbytes for tensor in tensors)
        truncations = tuple(self._recall.truncations) if self._recall else ()
        return MemoryReport(self._tasks, layers, tuple(self._protection.frozen), nbytes, truncations)

    def verify(
        self, batches: Any = None, tolerance: float = 1e-4, *, forward: Forward | None = None, recall: bool = False
    ) -> Verification:
        """Measures how far W·M, other state and the model's outputs for old tasks have moved.

        Call it when a task is trained and before it is consolidated. It warns if old outputs moved by more than a tenth. The
        outputs are those for a few examples that `consolidate` keeps in RAM. They are never saved, so a memory that was loaded
        or copied compares outputs only for `batches`, until its next `consolidate`.

        Args:
            batches: Batches of an old task, or {number of the task: batches}, to measure the drift of outputs and layers.
            tolerance: The largest leak ‖(W−W₀)·M‖ / ‖W−W₀‖ to accept.
            forward: A function (model, batch) that calls the model, as in `consolidate`.
            recall: Whether to prove, too, that every recalled task has the outputs for these batches (any batches) that it
                had before the current task; without batches, the same weights.

        Raises:
            LeakError: If a leak exceeds the tolerance and the rounding of the layer's number type, if other state has
                changed, or if old outputs moved although no tensor explains it. In all processes, if in one.
        """
        self._check_model()
        return self._verifier.verify(
            batches, tolerance, forward or recorder.call, self._recalling() if recall else None
        )

    def state_dict(self) -> dict[str, Any]:
        """Returns everything that training needs to continue, except the weights: save those with the model."""
        if self._constraint.unsettled:
            self._constraint.settle()
        return state.collect(self)

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Replaces this memory by a saved one of the same model; if it does not fit, raises StateError and changes nothing."""
        with self._lock, all_or_nothing(self):
            state.restore(self, saved)

    def save(self, path: str | Path) -> None:
        """Writes the memory to one safetensors file, which is replaced completely or not at all."""
        state.save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, model: nn.Module, *, threshold: ThresholdSetting | None = None) -> Self:
        """Returns the memory saved at `path`, for this model.

        Args:
            path: The file that `save` wrote.
            model: The same network, with the weights that it had then.
            threshold: Another threshold. It is required if the saved one was a function.

        Raises:
            StateError: If the file is damaged, or does not fit the model.
        """
        return state.load(cls, Path(path), model, threshold)
