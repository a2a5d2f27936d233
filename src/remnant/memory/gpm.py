"""Gradient Projection Memory for a model: Algorithm 1 of the paper, without its training loop, which is yours.

Here is what happens between tasks. `attach`, `project` and `restore`, which act on each step, are in steps/step_methods.py,
and `recall` is in recall/recall_methods.py.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from . import display
from .audit import preconditions as checks
from .audit.state import Buffers
from .audit.verification import Verifier
from .choices import CHOICES, REFUSED
from .recall.loss import Loss, loss_of
from .recall.recall import Recall
from .recall.recall_methods import RecallMethods
from .record import recorder
from .record.consolidation import all_or_nothing, remember
from .record.inputs import Growth
from .record.recorder import Forward
from .record.soft import grow_softly
from .report import LayerReport, MemoryReport, Verification
from .saving import copies, state
from .steps.attachment import Attachment
from .steps.constraint import Constraint
from .steps.step_methods import StepMethods
from .subspaces.subspace import Subspace
from .subspaces.threshold import ThresholdSetting, parse_threshold
from .weights.discovery import Protection
from .weights.own_parts import PART


class GPM(StepMethods, RecallMethods):
    """Remembers, for each layer, the subspace of inputs that past tasks used, and protects it from later steps.

    Let W be a layer's weight, W₀ its value at the start of the task, and M the remembered directions. Every step of an
    attached optimizer keeps W·M = W₀·M. The gradient is projected before the step, ∇W ← ∇W − (∇W·M)·Mᵀ (Eq. 6–7), and the
    weight is restored after it, W ← W₀ + (W − W₀)(I − M·Mᵀ). `len(memory)` is the number of remembered tasks.

    Args:
        model: The network. It may be wrapped by torch.compile or DistributedDataParallel. If FSDP2 or ColwiseParallel has
            sharded it, all ranks must call the memory's methods together.
        threshold: ε of Eq. 5 and 9, the share of each layer's input energy to remember. A number; `{"start": ε₀, "step": δ}`
            for ε₀ + δ·t in task t; `{pattern: ε}` by layer name; or a function (layer, task) → ε.
        protect: Name patterns of the modules or parameters to protect; all by default.
        exclude: Name patterns of modules or parameters to leave unprotected.
        bias: "augment" protects biases, as the weight of an input that is always 1. "freeze" freezes them after the first
            task. "free" leaves them unprotected.
        norm: "freeze" freezes affine parameters and running statistics of normalisation layers after the first task. "free"
            leaves them unprotected. "per-task" gives each task its own, which only `recall` brings back.
        rank_rule: "paper" for Eq. 5; "authors" for the published scripts, which take one direction fewer in the first task;
            "ranked" for TRGP's rule, which adds more (see `Subspace.grow`).
        unsupported: What to do about parameters and uses of a weight that no rule covers, and about buffers that training
            changes: "error" (for buffers a warning), "freeze" (after the first task) or "free" (leave them unprotected).
        recall: Whether to store what `recall` needs: the order of the directions, and each task's unprotected tensors.
        lora: "inputs" protects the LoRA adapters of a peft model through their layers' inputs, and `consolidate` merges them.
            None treats the adapters' matrices A and B like any other layers.
        sketch: Saves memory in `consolidate`: a layer with n ≥ 2·sketch inputs takes n·sketch numbers instead of n². It then
            may remember a few more directions. Choose about twice the number of directions that one task adds.
        soft: α of SGP. A direction is then protected as much as the tasks have used it, so new tasks learn more and old ones
            drift a little. A smaller α protects less; None protects all directions fully.
        own_rank: Gives each task a part of its own in every linear layer and convolution, U·V of this rank, which only
            `recall` brings back. The parts are submodules: make the memory before the optimizer. 0 leaves them out.
        keep_examples: Whether to keep eight examples of each task in RAM, whose outputs `verify` compares. False for private
            data: `verify` then checks weights and buffers, and outputs only for the batches that you pass.

    Raises:
        UnsupportedError: If the model has parameters that no rule covers, or no layer to protect.
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
        soft: float | None = None,
        own_rank: int = 0,
        keep_examples: bool = True,
    ) -> None:
        options: dict[str, Any] = {
            "bias": bias,
            "norm": norm,
            "rank_rule": rank_rule,
            "unsupported": unsupported,
            "recall": recall,
            "keep_examples": keep_examples,
            "lora": lora,
            "sketch": sketch,
            "soft": soft,
            "own_rank": own_rank,
        }
        for option, allowed in CHOICES.items():
            if options[option] not in allowed:
                raise ValueError(f"{option}={options[option]!r}: choose one of {', '.join(map(repr, allowed))}.")
        if refused := [message for message, is_so in REFUSED.items() if is_so(options)]:
            raise ValueError(refused[0].format(**options))
        rules = {option: options[option] for option in ("bias", "norm", "unsupported", "lora", "sketch", "own_rank")}
        self._protection = Protection(model, protect, exclude, ordered=recall, **rules)
        self._model = self._protection.model
        parsed = parse_threshold(threshold, [weight.name for weight in self._protection.weights])
        if own_rank:
            self._protection.add_own_parts(own_rank)  # last: if anything is refused, the model stays as it was
        self._threshold_given, self._threshold = threshold, parsed.of
        self._tasks, self._rank_rule = 0, rank_rule
        self._growth: Growth | None = None  # replaces the rank rule
        if soft is not None:
            self._growth = partial(grow_softly, soft, rank_rule)
            for subspace in (each for weight in self._protection.weights for each in weight.subspaces):
                subspace.use_weights()
        patterns = {"protect": self._protection.protect, "exclude": self._protection.exclude}
        self._settings = {"threshold": parsed.setting, **patterns, **options}
        self._constraint = Constraint(self._protection)
        self._buffers = Buffers(self._protection)
        self._recall = Recall(self._protection, self._constraint) if recall else None
        # With own parts or norms per task, `verify` must put those of a task in place before it compares the task's outputs.
        own = self._recall if own_rank or norm == "per-task" else None
        self._verifier = Verifier(self._protection, self._constraint, self._buffers, own, keep_examples)
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
        """Maps each layer's name to its subspace, or for a grouped layer to a list with one per group."""
        weights = self._protection.weights
        return MappingProxyType({w.name: w.subspaces[0] if w.view.groups == 1 else w.subspaces[:] for w in weights})

    def _check_model(self) -> None:
        if self._constraint.unsettled or self._constraint.no_steps:
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
        """Remembers a task: runs its batches through the model and grows all subspaces (Algorithm 1, lines 14–22).

        Args:
            batches: A DataLoader or another iterable of batches, or a single batch as a tensor or dict.
            samples: How many examples to use, drawn evenly with a fixed seed; all by default.
            layer_samples: How many examples of each batch to use, by pattern of layer names. A convolution sees many
                positions of each example, so a few examples are enough for it.
            forward: A function (model, batch) that calls the model. By default a tensor is passed as model(batch), a tuple
                as model(batch[0]), and a dict as model(**batch).
            recall: True measures the loss as trained and as recalled, for `report().truncations`; or pass a function
                (model's output, batch) → loss. The batches are then read three times.

        Returns:
            For each layer, the number of added directions.

        Raises:
            ConsolidationError: If the inputs of a layer could not be recorded. After any error or interrupt, the memory and
                the model are as they were before.
        """
        loss, forward = loss_of(recall) if recall else None, forward or recorder.call
        with torch.inference_mode(False):
            self._check_model()
            with self._lock, all_or_nothing(self) as anchors:
                return remember(
                    self, batches, samples, layer_samples or {}, forward=forward, anchors=anchors, loss=loss
                )

    def report(self) -> MemoryReport:
        """Returns how full each layer is and how many more tasks fit. `print` the result for a table.

        Returns:
            A `MemoryReport`, with one `LayerReport` per protected layer.
        """
        weights = self._protection.weights
        layers = tuple(LayerReport(w.name, w.capacity, w.rank, tuple(w.added)) for w in weights)
        records = self._recall.tasks if self._recall else []
        subspaces = [x for owner in (*(w.subspaces for w in weights), *(r.inputs for r in records)) for x in owner]
        tensors = [tensor for record in records for tensor in record.own.values()]
        nbytes = sum(subspace.nbytes for subspace in subspaces) + sum(tensor.nbytes for tensor in tensors)
        truncations = tuple(self._recall.truncations) if self._recall else ()
        free = tuple(name for name in self._protection.free if PART not in name)  # own parts belong to single tasks
        return MemoryReport(self._tasks, layers, tuple(self._protection.frozen), nbytes, truncations, free)

    def verify(
        self, batches: Any = None, tolerance: float = 1e-4, *, forward: Forward | None = None, recall: bool = False
    ) -> Verification:
        """Measures how far W·M, buffers and the model's outputs for old tasks have moved.

        Call it after you train a task and before you consolidate it. It warns if old outputs moved by more than 10 %: those
        for `batches`, and for a few examples that `consolidate` keeps in RAM, but never in a file or in a copy of the memory.

        Args:
            batches: Batches of an old task, or {task number: batches}, to measure the drift of outputs and layers on.
            tolerance: The largest leak ‖(W−W₀)·M‖ / ‖W−W₀‖ to accept.
            forward: A function (model, batch) that calls the model, as in `consolidate`.
            recall: Whether to check recalled tasks too: each must have the same outputs for these batches (any batches)
                as before the current task. Without batches, the weights are compared.

        Returns:
            A `Verification`, with the leak of each layer and the drift of each old task. `print` it for a table.

        Raises:
            LeakError: If a leak exceeds the tolerance and the rounding of the weight's type, a buffer or fixed parameter
                changed, or old outputs moved for a reason other than the weights. It is raised on all ranks.

        Example:
            >>> memory = GPM(nn.Linear(4, 2))
            >>> added = memory.consolidate([torch.randn(20, 2) @ torch.randn(2, 4)])
            >>> memory.verify().worst  # the largest leak: nothing has moved yet
            0.0
        """
        with torch.inference_mode(False):
            self._check_model()
            own = self._recalling() if recall else None
            with all_or_nothing(self):  # it moves weights and puts them back, and may be interrupted
                return self._verifier.verify(batches, tolerance, forward or recorder.call, own)

    def state_dict(self) -> dict[str, Any]:
        """Returns the memory's state, for a checkpoint of your own. It lacks the model's weights: save those, too."""
        return state.collect(self)

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Loads a `state_dict` of the same model. If it does not fit, raises StateError and changes nothing."""
        self._constraint.check_steps()
        with self._lock, all_or_nothing(self):
            state.restore(self, saved)

    def save(self, path: str | Path) -> None:
        """Writes the memory, without the model's weights, to one safetensors file.

        Args:
            path: The file. If it exists, it is replaced, or after an error left as it was.
        """
        state.save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, model: nn.Module, *, threshold: ThresholdSetting | None = None) -> Self:
        """Returns a memory that `save` wrote.

        Args:
            path: The file that `save` wrote.
            model: The same network, with the weights that it had when the memory was saved.
            threshold: A new threshold; required if the saved one was a function.

        Raises:
            StateError: If the file is damaged or does not fit the model.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> model = nn.Linear(4, 2)
            >>> with TemporaryDirectory() as folder:
            ...     GPM(model).save(f"{folder}/memory.safetensors")
            ...     memory = GPM.load(f"{folder}/memory.safetensors", model)
            >>> memory.report().layers
            (LayerReport(name='model', capacity=5, rank=0, added=()),)
        """
        return state.load(cls, Path(path), model, threshold)
