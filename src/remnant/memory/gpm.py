"""Gradient Projection Memory for a model: Algorithm 1 of the paper, without the training loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import state
from .attachment import Attachment
from .audit import preconditions as checks
from .audit.coverage import Coverage
from .audit.state import Buffers
from .audit.verification import LayerCheck, Verification, check_still, check_weight
from .discovery import Selection, discover, unwrap
from .errors import StateError
from .protected import ProtectedWeight
from .record import batches as batch_streams
from .record import consolidation, recorder
from .record.batches import Forward
from .report import LayerReport, MemoryReport
from .step_projector import StepProjector
from .subspace import RANK_RULES, Subspace
from .threshold import ThresholdSetting, parse_threshold

ROUNDING_STEPS = 8  # of plain SGD: so many roundings add up to less than one unit in the last place


class GPM:
    """Remembers, per layer, the subspace of inputs each task used, and keeps later steps out of it.

        memory = GPM(model, threshold=0.97, exclude=["heads.*"])
        memory.attach(optimizer)
        …train a task as ever…
        memory.consolidate(loader)

    threshold    ε of Eq. 5 and 9: a float, a dict of layer-name pattern → float, or a function (layer, task) → float
    protect      patterns of the modules or parameters to protect (default: all); `exclude` takes away from those
    bias         "augment": a bias is the weight of an input that is always 1; "freeze" or "free" it after the first task
    norm         "freeze": normalisation layers hold their affine parameters and running statistics after the first task
    rank_rule    "paper": Eq. 5; "authors": the published scripts' count, one direction fewer in the first task
    unsupported  parameters, uses of a weight and buffers that no rule covers: "error" (a warning for buffers), "freeze"
                 (after the first task) or "free"
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
    ) -> None:
        _one_of("bias", bias, ("augment", "freeze", "free"))
        _one_of("norm", norm, ("freeze", "free"))
        _one_of("rank_rule", rank_rule, RANK_RULES)
        _one_of("unsupported", unsupported, ("error", "freeze", "free"))
        self._model = unwrap(model)
        self._selection = selection = Selection(protect, exclude)
        self._protection = discover(self._model, selection, bias=bias, norm=norm, unsupported=unsupported)
        parsed = parse_threshold(threshold)
        self._threshold = parsed.for_layers([weight.name for weight in self._protection.weights])
        self._rank_rule, self._unsupported = rank_rule, unsupported
        self._settings: dict[str, Any] = {
            "threshold": parsed.setting,
            "protect": selection.protect,
            "exclude": selection.exclude,
            "bias": bias,
            "norm": norm,
            "rank_rule": rank_rule,
            "unsupported": unsupported,
        }
        self._tasks = 0
        self._anchors: dict[Tensor, Tensor] = {}  # W₀: the protected and frozen parameters as the task found them
        self._buffers = Buffers(self._model, self._protection, selection, unsupported)
        self._attached: list[Attachment] = []
        self._stepped: set[Tensor] = set()
        self._said_full: set[str] = set()
        self._steps = 0  # of this task

    def __len__(self) -> int:
        return self._tasks

    def __bool__(self) -> bool:
        return True  # `if memory:` asks whether there is a memory, not whether it has learnt a task yet

    @property
    def subspaces(self) -> Mapping[str, Subspace | list[Subspace]]:
        """Layer name → its subspace; a list of them, one per group, for a grouped layer."""
        return MappingProxyType(
            {w.name: w.subspaces[0] if len(w.subspaces) == 1 else list(w.subspaces) for w in self._protection.weights}
        )

    @property
    def nbytes(self) -> int:
        """Memory the bases take."""
        return sum(subspace.nbytes for weight in self._protection.weights for subspace in weight.subspaces)

    # --- while a task is learnt -----------------------------------------------------------------------------------

    def attach(self, optimizer: Optimizer) -> Optimizer:
        """From now on every step of this optimizer leaves W·M where the task found it. Attaching again changes nothing."""
        if any(attachment.optimizer is optimizer for attachment in self._attached):
            return optimizer
        checks.check_model(self._model, self._protection)
        checks.check_trains_protected(optimizer, self._protection)
        self._attached.append(Attachment(optimizer, self._project, self._restore, self._check_nothing_open))
        if self._tasks:
            self._buffers.hold()
        return optimizer

    def _check_nothing_open(self, optimizer: Optimizer) -> None:
        checks.check_nothing_open(optimizer, self._model, self._protection, self._selection)

    def _check_model(self) -> None:
        """The model and what trains it, as they are now: each may have changed since it was looked at last."""
        checks.check_model(self._model, self._protection)
        for attachment in self._attached:
            attachment.look()

    def detach(self, optimizer: Optimizer | None = None) -> None:
        """Undoes attach: for this optimizer, or for all. Once none is left, normalisation layers train again."""
        for attachment in [a for a in self._attached if optimizer in (None, a.optimizer)]:
            attachment.remove()
            self._attached.remove(attachment)
        if not self._attached:
            self._buffers.release()

    def project(self) -> None:
        """Takes out of every `.grad` what is remembered (Eq. 6–7), for a hand-written step. Exact for plain SGD alone."""
        self._project(None)

    @property
    def _frozen_parameters(self) -> list[Tensor]:
        return list(self._protection.frozen.values()) if self._tasks else []

    # XXX old names, until the methods have switched to StepProjector
    @property
    def frozen_parameters(self) -> list[Tensor]:
        return self._frozen_parameters

    @property
    def _step_projector(self) -> StepProjector:
        if not hasattr(self, "_projector"):
            self._projector = StepProjector(self)
        return self._projector

    def project_gradients(self, gradients: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        return self._step_projector.project(gradients)

    def inputs_projected(self, rows: int) -> Any:
        return self._step_projector.through_inputs(rows)

    def remaining(self) -> dict[str, Tensor]:
        return self._step_projector.layer_projections()

    @property
    def tasks(self) -> int:
        return self._tasks

    @property
    def model(self) -> nn.Module:
        return self._model

    @property
    def settings(self) -> dict[str, Any]:
        return self._settings

    def restore(self) -> None:
        """Puts every protected weight back to W·M = W₀·M, after a hand-written step that is not plain SGD."""
        self._restore(None)

    @torch.no_grad()
    def _project(self, parameters: set[Tensor] | None) -> None:
        for weight in self._protection.weights:
            if parameters is None or not parameters.isdisjoint(weight.parameters):
                self._stepped.update(p for p in weight.parameters if p.grad is not None)
                if self._tasks and weight.rank:
                    weight.project_gradient()
        frozen = [p.grad for p in self._frozen_parameters if p.grad is not None]
        if frozen:
            torch._foreach_zero_(frozen)

    @torch.no_grad()
    def _restore(self, parameters: set[Tensor] | None, along_gradient: bool = False) -> None:
        """`along_gradient`: the step was a multiple of the projected gradient, so rounding alone is to be put back."""
        if not self._tasks:
            return
        self._steps += 1
        along_gradient = along_gradient and self._steps % ROUNDING_STEPS != 0
        self._follow_devices()
        for weight in self._protection.weights:
            if not weight.rank or (parameters is not None and parameters.isdisjoint(weight.parameters)):
                continue
            if not (along_gradient and parameters and weight.moved_along_gradient(parameters)):
                weight.restore(self._anchors)
        if along_gradient:
            return
        held = self._frozen_parameters
        if held:
            torch._foreach_copy_(held, [self._anchors[p] for p in held])

    def _follow_devices(self) -> None:
        """A model moved to another device takes what it started from along."""
        for parameter, anchor in self._anchors.items():
            if anchor.device != parameter.device:
                self._anchors[parameter] = anchor.to(parameter.device)

    # --- after a task ---------------------------------------------------------------------------------------------

    def consolidate(
        self,
        batches: Any,
        *,
        samples: int | None = None,
        layer_samples: Mapping[str, int] | None = None,
        forward: Forward | None = None,
    ) -> dict[str, int]:
        """Remembers a task: streams its batches through the model and grows every layer's basis (Eq. 5, 8, 9).

        `samples`: only that many examples, drawn evenly with a fixed seed. `layer_samples`: pattern of layer names → how
        many of each batch's examples are enough there (a convolution sees many positions of each). `forward(model,
        batch)`: how to call the model, where model(batch), model(batch[0]) or model(**batch) is not it. Returns how many
        directions each layer gained. All or nothing: an error leaves the memory as it was.
        """
        self._check_model()
        weights = self._protection.weights
        thresholds = {weight.name: self._threshold(weight.name, self._tasks) for weight in weights}
        coverage = Coverage(self._model, self._protection, self._selection, self._unsupported)
        grams = consolidation.gather(
            self._model,
            weights,
            batches,
            samples=samples,
            layer_samples=layer_samples,
            forward=coverage.watch(forward or batch_streams.call),
            task=self._tasks,
        )
        fixed = coverage.fixed(self._stepped)
        consolidation.check_all_seen([weight for weight in weights if weight not in fixed], grams, self._stepped)
        coverage.check(self._stepped)
        checks.warn_of_leaks(self._checks(None) if self._tasks else [])
        moving = self._buffers.moving(coverage.buffers_read)
        checks.warn_of_moving_buffers(moving if self._unsupported == "error" else [])
        grown = consolidation.grow(weights, grams, thresholds.__getitem__, self._rank_rule, fixed)
        checks.warn_of_full(self._newly_full(grown))
        for weight, subspaces, count in grown:
            weight.adopt(subspaces, [*weight.added, count])
        self._tasks += 1
        self._begin_task()
        self._buffers.begin_task(coverage.buffers_read, moving)
        return {weight.name: count for weight, _, count in grown}

    def _begin_task(self) -> None:
        """The weights as they are now are what the next task must preserve."""
        parameters = [p for weight in self._protection.weights for p in weight.parameters]
        self._anchors = {p: p.detach().clone() for p in [*parameters, *self._protection.frozen.values()]}
        self._stepped.clear()
        self._steps = 0

    def _newly_full(self, grown: consolidation.Grown) -> list[str]:
        full = [weight.name for weight, subspaces, _ in grown if all(subspace.full for subspace in subspaces)]
        new = [name for name in full if name not in self._said_full]
        self._said_full.update(new)
        return new

    # --- looking at it --------------------------------------------------------------------------------------------

    def report(self) -> MemoryReport:
        """Per layer: capacity, rank, share used, directions added per task, and how many more tasks fit."""
        layers = (LayerReport(w.name, w.capacity, w.rank, tuple(w.added)) for w in self._protection.weights)
        return MemoryReport(self._tasks, tuple(layers), tuple(self._protection.frozen))

    def verify(self, batches: Any = None, tolerance: float = 1e-4, *, forward: Forward | None = None) -> Verification:
        """How far W·M has moved, per layer; with batches of an old task, how far its outputs drifted.

        Both since the last `consolidate`: call it when a task is trained and before it is consolidated; right after, both
        are 0.
        Raises LeakError where a layer's leak is beyond the tolerance and beyond what its number type can hold.
        """
        self._check_model()
        grams = None
        if batches is not None:
            stream = batch_streams.stream(batches)
            grams, count = recorder.record(self._model, self._protection.weights, stream, forward or batch_streams.call)
            if not count:
                raise ValueError("There were no batches to measure the drift on. Is the loader empty or used up?")
        result = Verification(tuple(self._checks(grams)) if self._tasks else (), tolerance)
        result.raise_if_leaking()
        return result

    @torch.no_grad()
    def _checks(self, grams: recorder.Grams | None) -> list[LayerCheck]:
        self._follow_devices()
        layers = [check_weight(weight, self._anchors, grams) for weight in self._protection.weights]
        layers += [check_still(name, p, self._anchors[p]) for name, p in self._protection.frozen.items()]
        return layers + self._buffers.checks()

    # --- keeping it -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on, the weights themselves aside: save those with the model's own state_dict."""
        checks.check_model(self._model, self._protection)
        return state.collect(self)

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Takes over a saved memory of the same model. All or nothing."""
        checks.check_model(self._model, self._protection)
        state.restore(self, saved)

    def save(self, path: str | Path) -> None:
        """One safetensors file, replaced whole or not at all."""
        checks.check_model(self._model, self._protection)
        state.save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, model: nn.Module, *, threshold: ThresholdSetting | None = None) -> GPM:
        """The memory saved at `path`, for this model. `threshold` is needed where it was a function, which no file holds."""
        header, saved = state.load(Path(path))
        try:
            settings = dict(header["settings"])
            kept = settings.pop("threshold")
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"{path} is damaged: its settings cannot be read ({error!r}).") from error
        if threshold is None and kept is None:
            raise StateError(
                f"The threshold of {path} was a function. Pass it again: GPM.load(path, model, threshold=…)."
            )
        try:
            memory = cls(model, threshold if threshold is not None else kept, **settings)
        except (TypeError, ValueError) as error:
            raise StateError(f"The memory in {path} does not fit this model: {error}") from error
        memory.load_state_dict(saved)
        return memory


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: choose one of {', '.join(map(repr, allowed))}.")
