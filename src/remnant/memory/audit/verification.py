"""Measures whether old outputs moved, and why: in the weights, in other state, or in something that is not a tensor.

Unless keep_examples=False, the memory keeps a few examples of each task with the model's outputs for them, in RAM only. They
tell what no comparison of weights can: that the model's code, a mask or an attribute has changed.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..record import recorder
from ..record.batches import each_batch, is_numbered, tensors_in
from ..record.consolidation import share_grams, sinks_for_own_batches
from ..record.recorder import Forward, Grams
from ..report import LeakError, TaskCheck, Verification
from ..weights.discovery import Protection
from ..weights.distributed import SynchronisedBatches, summed
from .probe import NARROW_ROUNDINGS, Probe
from .state import Buffers, checksum, outputs_depend
from .trial import change_of, ordinary, percent, placed

if TYPE_CHECKING:
    from ..recall.recall import Recall
    from ..steps.constraint import Constraint

KEPT = 16  # the number of tasks whose examples are kept, the latest ones
BYTES = 2**28  # the most that all kept outputs may take; the oldest are dropped (those of a language model are large)
FORGOTTEN = 0.1  # a larger drift of the outputs is worth a warning
MIXED = 10  # times the change by other examples in the batch: a smaller drift may come from them (batch statistics)
CODE_CHANGED = (
    "With the weights and buffers of the last `consolidate`, the model gives different outputs from then ({} apart). "
    "Something other than a tensor's value has changed: its code (a patched forward, another class, a hook), a "
    "parametrization or mask, a buffer that is gone, an attribute that forward, train() or eval() reads, or a tensor that "
    "the model uses and has not registered. Undo that change, or make a new memory for this model."
)
STATE_MOVED = (
    "Old outputs moved by {} because these buffers changed: {}. No optimizer moves buffers: the module or your own code "
    "did. Exclude them by name to accept the change."
)
MOVED_UNSEEN = (
    "Old outputs moved through weights that are used in ways their rule does not cover: {}. They moved although the weights "
    "changed only in directions that no recorded input uses. Call the layer itself instead of a function with its "
    'weight, exclude it, or make the memory with unsupported="freeze".'
)
RECALL_MOVED = (
    "Recalled tasks have moved since the last `consolidate`: {}. Protected weights were changed outside the "
    "attached optimizers, or the model's code has changed."
)
NO_EXAMPLES = "There were no batches with examples. Is the loader empty or used up?"
NO_NUMBERS = (
    "The model returns no tensors for these batches, so no outputs can be compared. Pass forward= that returns some."
)
OTHER_PATH = (
    "The outputs for {} were not compared: the forward pass calls different layers from when the task was consolidated, "
    "perhaps another task's head. Pass `consolidate` a forward= that selects the task's head."
)
DRIFTED = (
    "Old outputs moved by {}, and no leak explains it. They depend on what the memory does not hold: the share 1−ε of the "
    "inputs' energy, {}layers that are left free, or one head that every task trains.{} Raise the "
    "threshold, or give each task a head of its own."
)


@dataclass(frozen=True)
class Witness:
    """A few examples of one task (in the probe) and the model as it was when the task was consolidated."""

    task: int
    probe: Probe
    outputs: list[Tensor]
    path: set[nn.Module]  # the layers that were called
    anchors: Mapping[Tensor, Tensor]  # W₀
    unprotected: dict[str, Tensor]  # buffers and free parameters, which the anchors do not contain
    fixed: dict[Tensor, tuple[str, int]]  # parameters that do not train → their checksum


@dataclass(eq=False)
class Verifier:
    """Compares the weights, other state, and outputs of a model with those when its tasks were consolidated."""

    protection: Protection
    constraint: Constraint
    buffers: Buffers
    own: Recall | None = None  # has the norms and parts of each task, if tasks have some of their own
    keep_examples: bool = True  # False for private data
    witnesses: list[Witness] = field(default_factory=list)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "witnesses": []}  # a forward function may not be picklable, and examples may be private

    def remember(self, task: int, probe: Probe) -> None:
        """Keeps the probe's examples as those of a task that is consolidated now."""
        if probe.examples is None or probe.inconclusive or not self.keep_examples:
            return
        try:
            outputs, path = probe.before or (probe.outputs(), probe.path)
        except Exception:  # a few examples alone may be too few
            return
        model, anchors = self.protection.model, self.constraint.anchors
        fixed = {p for p in model.parameters() if p not in anchors and not p.requires_grad}
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        own = {name: t.detach().clone() for name, t in tensors.items() if t not in anchors and t not in fixed}
        self.witnesses = [replace(w, anchors={}, unprotected={}, fixed={}) for w in self.witnesses[1 - KEPT :]]
        self.witnesses.append(
            Witness(task, probe, [x.cpu() for x in outputs], path, anchors, own, {p: checksum(p) for p in fixed})
        )
        while len(self.witnesses) > 1 and sum(x.nbytes for w in self.witnesses for x in w.outputs) > BYTES:
            del self.witnesses[0]

    def remember_again(self) -> None:
        """Keeps the last task's outputs as they are now, after the task was trained as it is recalled."""
        if self.witnesses:
            last = self.witnesses.pop()
            last.probe.before = None
            with self._own_of(last.task):  # as `_drift` will compare them
                self.remember(last.task, last.probe)

    def verify(self, batches: Any, tolerance: float, forward: Forward, recall: Recall | None = None) -> Verification:
        """Compares tensors and outputs; see `GPM.verify`."""
        if isinstance(tolerance, bool) or not isinstance(tolerance, int | float):
            raise TypeError(f"tolerance={tolerance!r}: it must be a number.")
        tasks_here = len(self.protection.weights[0].added)
        if is_numbered(batches) and (unknown := [task for task in batches if not 0 <= task < tasks_here]):
            known = f"choose 0 to {tasks_here - 1}" if tasks_here else "none is remembered yet"
            raise ValueError(f"There is no task {unknown[0]}: {known}.")
        message = ""
        failure: Exception | None = None
        batches = list(batches) if recall and isinstance(batches, Iterator) else batches  # they are read more than once
        try:
            tasks = [TaskCheck(f"task {w.task}", self._drift(w)) for w in self.witnesses]
            elsewhere = [f"task {w.task}" for w in self.witnesses if not w.path <= w.probe.path]
            given, grams, uncovered, read = (
                self._drifts(batches, forward) if batches is not None else ([], None, "", set[str]())
            )
            last = self.witnesses[-1] if self.witnesses else None
            # The model may take other inputs today than those of an earlier task.
            run = [
                w.probe for w, task in zip(self.witnesses, tasks, strict=True) if w is last or task.drift is not None
            ]
            layers = (*self.constraint.checks(grams), *self.buffers.checks(run, read))
            recalled = recall.drift(batches, forward) if recall else []
            result = Verification(layers, tolerance, (*tasks, *given, *recalled))
            rounding = NARROW_ROUNDINGS * max((torch.finfo(p.dtype).eps for p in self.constraint.anchors), default=0.0)
            moved = [f"{x.name} ({x.drift:.2g})" for x in recalled if (x.drift or 0) > max(tolerance, rounding)]
            message = result.leaks() or (RECALL_MOVED.format(", ".join(moved)) if moved else "")
            message = message or (self._unexplained(last) if last else "") or uncovered
        except Exception as error:
            failure = error  # raised below: the other processes must know first, since they wait for this one
        failed = int(summed(torch.tensor(bool(failure or message), device="cpu")))
        if failure is not None:
            raise failure
        if failed:
            raise LeakError(message or f"{failed} other rank(s) found a leak; see their errors.")
        if elsewhere:
            warnings.warn(OTHER_PATH.format(", ".join(elsewhere)), stacklevel=3)
        if drifted := [f"{x.drift:.0%} for {x.name}" for x in result.tasks if (x.drift or 0) > FORGOTTEN]:
            most = sorted((x for x in result.layers if x.drift), key=lambda x: -(x.drift or 0))[:3]
            named = f" The layers that drift most: {', '.join(repr(x.name) for x in most)}." if most else ""
            soft = any(weight.is_soft for weight in self.protection.weights)
            reason = "directions that soft= lets move, " if soft else ""
            warnings.warn(DRIFTED.format(", ".join(drifted), reason, named), stacklevel=3)
        return result

    def _drift(self, witness: Witness) -> float | None:
        """How far today's outputs are from those of then; of a head that has grown, for the outputs that it had."""
        try:
            with self._own_of(witness.task):
                now = witness.probe.outputs()
            # No change is a share of outputs that were zero, such as those of a new head.
            kept = [n for n, x in enumerate(witness.outputs) if bool(x.any()) or not x.is_floating_point()]
            if not kept or not witness.path <= witness.probe.path:
                return None
            drift = _common_change([witness.outputs[n] for n in kept], [now[n] for n in kept])
            mixing = copy.copy(witness.probe).mixing  # on a copy, because `path` is that of the examples together
            if drift is not None and FORGOTTEN < drift < MIXED * mixing():
                return None  # batch statistics of examples that never were one batch tell nothing
            return drift
        except Exception:  # the model takes other inputs now
            return None

    @contextmanager
    def _own_of(self, task: Any) -> Iterator[None]:
        """Puts a task's own norms and parts in place for the block."""
        with placed(self.own.own_values(task + 1) if self.own else {}):
            yield

    def _drifts(self, batches: Any, forward: Forward) -> tuple[list[TaskCheck], Grams, str, set[str]]:
        """Compares today's outputs for batches with those of the weights W₀, and records the layers' inputs.

        Also returns a description of weights that are used in uncovered ways, and the names of moved state that is read.
        """
        numbered, read = is_numbered(batches), set[str]()
        grams = recorder.empty_grams(self.protection.weights)
        checks = []
        uncovered = ""
        for name, series in batches.items() if numbered else [("batches", batches)]:
            probe, moved, total, most, count, message = Probe(self.protection, forward), 0.0, 0.0, 0.0, 0, NO_EXAMPLES
            synchronised = SynchronisedBatches(each_batch(series), sharded=self.protection.sharded)
            sinks = sinks_for_own_batches(grams, self.protection, synchronised)
            for batch in synchronised:
                with self._own_of(name) if numbered else nullcontext():
                    now = probe.outputs(batch, sinks)
                    with self._anchored():
                        then = probe.outputs(batch)
                read |= self.buffers.read_by(probe, batch)
                message = NO_NUMBERS if any(len(x) for x in tensors_in(batch) if x.ndim) else message
                if synchronised.repeating:
                    continue
                size = sum(float(x[x.isfinite() & ordinary(x)].double().square().sum()) for x in then)
                by = change_of(then, now)
                moved, total = moved + by**2 * size, total + size
                count += any(x.numel() for x in then)
                if by > max(most, probe.rounding):
                    most, probe.examples = by, batch
            if not count:
                raise ValueError(message)
            drift = (moved / total) ** 0.5 if total else None
            checks.append(TaskCheck(f"task {name}, batches" if numbered else name, drift))
            if most and not uncovered and not self.protection.sharded:  # whose passes need all processes
                steps = self._steps()
                with self._anchored():
                    uncovered = self._uncovered(probe, steps)
        if self.protection.sharded:
            share_grams(grams)
        return checks, grams, uncovered, read

    def _steps(self) -> dict[Tensor, Tensor]:
        """How far each parameter has moved in this task."""
        return {p: p.detach().double() - w.to(p.device).double() for p, w in self.constraint.anchors.items()}

    def _uncovered(self, probe: Probe, steps: dict[Tensor, Tensor]) -> str:
        """Describes weights through which these steps from W₀ move outputs in ways that no rule covers, if there are any."""
        found = probe.uncovered(steps) if self.protection.unsupported != "free" else {}
        return MOVED_UNSEEN.format(", ".join(f"{w.name!r} ({percent(by)})" for w, by in found.items())) if found else ""

    @contextmanager
    def _anchored(self, others: Mapping[Tensor, Tensor] | None = None) -> Iterator[None]:
        """Puts W₀ in place for the block, and other values that are given."""
        with torch.no_grad(), placed({**self.constraint.anchors, **(others or {})}):
            yield

    def _unexplained(self, last: Witness) -> str:
        """Describes a change of the last task's outputs that neither W·M nor other tensors explain."""
        anchors, model = self.constraint.anchors, self.protection.model
        now = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        own = {now[n]: value for n, value in last.unprotected.items() if n in now and now[n].shape == value.shape}
        watched = self.buffers.values.keys() | self.buffers.checksums.keys()  # if the outputs stay, they are not missed
        modules = dict(model.named_modules())
        gone = [n for n in last.unprotected if n not in now and n not in watched and n.rpartition(".")[0] in modules]
        other_type = [p for p, anchor in anchors.items() if p.dtype != anchor.dtype]
        replaced = anchors is not last.anchors  # a network was loaded, or trained as it is recalled
        if replaced or gone or other_type or not last.path <= set(modules.values()):
            return ""  # a head was removed or the user changed what no anchor holds: the comparison could not tell
        moved_fixed = [p for p, then in last.fixed.items() if checksum(p)[1] != then[1]]
        if moved_fixed and outputs_depend(last.probe, moved_fixed):
            return ""  # only their checksums are kept, so their old values cannot be put back
        steps = self._steps()
        with self._anchored(own):
            outputs = last.probe.outputs()
            moved = _common_change(last.outputs, outputs) if last.path <= last.probe.path else None
            if moved is not None and moved > last.probe.rounding:
                if moved > 10 * change_of(outputs, last.probe.outputs()):
                    return CODE_CHANGED.format(percent(moved))
            elif uncovered := self._uncovered(last.probe, steps):
                return uncovered
        state = {name: tensor for name, tensor in self.buffers.watched() if tensor in own}
        with self._anchored({tensor: value for tensor, value in own.items() if tensor not in set(state.values())}):
            if moved is not None and (by := change_of(outputs, last.probe.outputs())) > 10 * max(
                moved, last.probe.rounding
            ):
                changed = [
                    repr(name) for name, tensor in state.items() if not torch.equal(tensor, own[tensor].to(tensor))
                ]
                return STATE_MOVED.format(percent(by), ", ".join(changed))
        return ""


def _common_change(before: list[Tensor], after: list[Tensor]) -> float | None:
    """The change of the outputs that existed before: a head may have grown since."""
    pairs = list(zip(before, after, strict=False))
    if len(after) < len(before) or any(x.shape[:-1] != y.shape[:-1] or x.shape > y.shape for x, y in pairs):
        return None
    return change_of(before, [y[..., : x.shape[-1]] if x.ndim else y for x, y in pairs])
