"""Recall: the network of an old task, read through its own memory.

Let M_t be the memory when task t ended. Later steps never change W·M_t, so the network with the weights W·M_t·M_tᵀ is a
constant: for every input, task t has the outputs that it had then. All tensors that are not protected (norms with
norm="per-task", free heads, buffers) are kept with the task.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..audit.probe import Probe
from ..audit.trial import change_of, placed
from ..record.batches import each_batch, is_numbered, map_tensors, tensors_in
from ..record.consolidation import Grown
from ..record.recorder import Forward, Grams, eager_eval, record_rows
from ..report import TaskCheck, Truncation
from ..steps.constraint import Constraint
from ..subspaces.subspace import Subspace
from ..weights.discovery import Protection, clean
from ..weights.distributed import summed
from ..weights.own_parts import restart
from ..weights.protected import ProtectedWeight
from .loss import Loss
from .recognition import Recognition, recognised
from .records import Ranks, TaskRecord

Values = dict[Tensor, Tensor]  # parameter or buffer → its value


class Recall:
    """Keeps what each old task's network needs besides the memory, and puts that network in place for a `with` block."""

    def __init__(self, protection: Protection, constraint: Constraint) -> None:
        self._protection, self._constraint = protection, constraint
        self.is_training = False  # whether a block of `training` runs
        self.tasks: list[TaskRecord] = []
        self.truncations: list[Truncation] = []

    def record(self, grown: Grown, grams: Grams, thresholds: Mapping[str, float], probe: Probe) -> TaskRecord:
        """Returns what the task that just ended needs. The directions of its first layer's inputs name it later."""
        if self.is_training:
            raise RuntimeError("Leave the block of memory.recalling() before you consolidate the next task.")
        first, _ = self.first_layer(copy.deepcopy(probe.examples), probe.forward)  # a forward pass may change its input
        after = {weight.name: subspaces for weight, subspaces, _ in grown}
        inputs = [type(subspace)(subspace.capacity, device=subspace.basis.device) for subspace in after[first]]
        for group, subspace in enumerate(inputs):
            subspace.grow(grams[first].of_group(group), thresholds[first])
        ranks = {name: [subspace.rank for subspace in subspaces] for name, subspaces in after.items()}
        return TaskRecord(ranks, self._changed(), first, inputs)

    def add(self, record: TaskRecord) -> None:
        self.tasks = [*self.tasks, record]

    def add_truncation(self, loss: float, recalled_loss: float) -> None:
        self.truncations = [*self.truncations, Truncation(len(self.tasks) - 1, loss, recalled_loss)]

    def _changed(self) -> dict[str, Tensor]:
        """Copies of the tensors that are not protected and differ from the last copy."""
        last, copies = self._latest(len(self.tasks)), {}
        for name, tensor in self._unprotected().items():
            if name not in last or last[name].shape != tensor.shape or not torch.equal(tensor, last[name].to(tensor)):
                copies[name] = tensor.detach().clone()
        return copies

    def _latest(self, tasks: int) -> dict[str, Tensor]:
        return {name: value for record in self.tasks[:tasks] for name, value in record.own.items()}

    def _unprotected(self) -> dict[str, Tensor]:
        """Buffers and parameters that may change: those that train, did when the memory was made, or are not selected."""
        protected, free = set(self._protection.parameters), set(self._protection.free.values())
        own = {
            name: p
            for name, p in self._protection.named_parameters().items()  # other fixed ones are watched by `verify`
            if p not in protected and (p.requires_grad or p in free or not self._protection.selects(name))
        }
        return {**own, **{clean(name): buffer for name, buffer in self._protection.model.named_buffers()}}

    def own_values(self, tasks: int) -> Values:
        """The values of unprotected tensors after that many tasks. A cache of another shape stays as it is today."""
        now, saved = self._unprotected(), {clean(name) for name in self._protection.model.state_dict()}
        values = {name: value for name, value in self._latest(tasks).items() if name in now}
        if lost := [n for n, value in values.items() if n in saved and now[n].shape != value.shape]:
            raise RuntimeError(f"{lost[0]!r} had another shape in the old task, so the task cannot be recalled.")
        return {now[n]: value for n, value in values.items() if now[n].shape == value.shape}

    @torch.no_grad()
    def network(self, task: int, start: Mapping[Tensor, Tensor] | None = None) -> Values:
        """The tensors of a task's network, from today's weights or from those at the start of the current task."""
        if self.is_training:
            raise RuntimeError("Leave the block of memory.recalling() first; in it, the model is the recalled network.")
        if not isinstance(task, int) or not 0 <= task < len(self.tasks):
            known = f"choose 0 to {len(self.tasks) - 1}" if self.tasks else "no task is remembered yet"
            raise IndexError(f"There is no task {task!r} to recall: {known}.")
        return {**self.own_values(task + 1), **self._through_memory(self.tasks[task].ranks, start)}

    def _through_memory(self, ranks: Ranks, start: Mapping[Tensor, Tensor] | None = None) -> Values:
        """W·M·Mᵀ for all protected weights: W without the part that later steps may still change."""
        weights = self._protection.weights
        values = {p: (p if start is None else start[p]).detach().double() for w in weights for p in w.parameters}
        changeable = {parameter: value.clone() for parameter, value in values.items()}
        for weight in weights:  # a two-sided weight loses what neither side remembers
            if weight.is_soft:
                raise ValueError(f"{weight.name!r} has directions with a weight below 1, which move. Recall needs 1.")
            pairs = zip(weight.subspaces, ranks[weight.name], strict=True)
            prefixes = [subspace.prefix(rank) for subspace, rank in pairs]
            weight.change_among(changeable, lambda stack, m=prefixes: _each_group(stack, m))  # type: ignore[misc]
        return {parameter: (value - changeable[parameter]).to(parameter) for parameter, value in values.items()}

    @contextmanager
    def reading(self, task: int, start: Mapping[Tensor, Tensor] | None = None) -> Iterator[None]:
        """Puts a task's network in place for the block."""
        with self._constraint.without_steps(), placed(self.network(task, start)):
            yield

    @contextmanager
    def training(self) -> Iterator[None]:
        """The forward pass of the block is the last task's recalled network; steps move the directions new with it."""
        self._check_can_train()
        # Changes that were made past the optimizers' hooks are undone, so that they do not count as the task's own.
        self._constraint.restore()
        truncated = self._through_memory(self.tasks[-1].ranks)
        rest = {parameter: parameter.detach() - value for parameter, value in truncated.items()}
        own = self.own_values(len(self.tasks))
        start = {tensor: tensor.detach().clone() for tensor in (*truncated, *own)}
        saved = {weight: weight.subspaces for weight in self._protection.weights}
        anchors, has_begun = self._constraint.anchors, False
        try:
            self.is_training = True
            _assign({**truncated, **own})
            for weight in saved:
                weight.adopt(self._all_but_new(weight), weight.added)
            self._constraint.begin_task()
            has_begun = True
            yield
        finally:
            if has_begun:
                self._constraint.restore()
                _assign({parameter: parameter.detach() + value for parameter, value in rest.items()})
            else:  # an interrupt came first
                _assign(start)
            for weight, subspaces in saved.items():
                weight.adopt(subspaces, weight.added)
            self._constraint.begin_task(None if has_begun else anchors)
            self.tasks[-1].own.update(self._changed() if has_begun else {})
            restart(self._protection.own_parts, len(self.tasks), self._constraint.optimizers)
            self.is_training = False

    def _check_can_train(self) -> None:
        """Refuses to train the last task as recalled if there is none, or if the next task has begun."""
        self._constraint.check_steps()
        if not self.tasks or self.is_training:
            raise RuntimeError(
                "recalling() trains the task that was consolidated last. Consolidate one, and do not nest it."
            )
        names = {parameter: name for name, parameter in self._protection.named_parameters().items()}
        own = {names[parameter] for part in self._protection.own_parts for parameter in part.parameters()}
        old = (self._latest(len(self.tasks)).keys() & set(names.values())) - own  # a new head has not been trained yet
        moved = [names[part.up.weight] for part in self._protection.own_parts if bool(part.up.weight.any())]
        moved += [name for name in self._changed() if name in old]
        if moved:
            raise RuntimeError(
                f"The next task has begun: {moved[0]!r} has changed since the last consolidate. Use recalling() before the "
                "next task's first step, or consolidate again first."
            )

    def _all_but_new(self, weight: ProtectedWeight) -> list[Subspace]:
        """The subspaces to keep fixed so that only the directions that the last task added can move."""
        *_, before, after = [[0] * len(weight.subspaces), *(task.ranks[weight.name] for task in self.tasks)]
        twice = sum(other.view.weight is weight.view.weight for other in self._protection.weights) > 1
        ranges = zip(weight.subspaces, before, after, strict=True)
        if twice and weight.view.one_hot:
            return [subspace.prefix(first) for subspace, first, _ in ranges]  # the other side restricts the step
        return [subspace.all_but(first, last) for subspace, first, last in ranges]

    @torch.no_grad()
    def recognise(self, batch: Any, forward: Forward) -> Recognition:
        """Names the task with the smallest residual ‖x − B_t·B_tᵀ·x‖², B_t the directions of its own first-layer inputs."""
        if not self.tasks:
            raise RuntimeError("No task is remembered yet, so none can be recognised. Call consolidate first.")
        if not any(len(x) for x in tensors_in(batch) if x.ndim):
            raise ValueError("which_task takes a batch of at least one example, and this one has none.")
        name, rows = self.first_layer(batch, forward)
        if other := {record.first_layer for record in self.tasks} - {name}:
            raise ValueError(f"These inputs reach {name!r} first, but those of an old task reached {other.pop()!r}.")
        examples = len(next(tensors_in(batch)))
        if rows[0].shape[0] % examples:
            raise ValueError(f"The rows of {name!r} cannot be assigned to examples. Pass one example at a time.")
        return recognised(rows, [record.inputs for record in self.tasks], examples)

    def first_layer(self, batch: Any, forward: Forward) -> tuple[str, Tensor]:
        """The protected layer that the forward pass reaches first, and its input rows (groups, N, n) or indices (1, N)."""
        reached: dict[str, list[Tensor]] = {}

        def keep(weight: ProtectedWeight, rows: Tensor) -> None:
            chunk = rows.reshape(1, -1) if weight.view.one_hot else rows
            reached.setdefault(weight.name, []).append(chunk.clone())

        record_rows(self._protection.model, {w: partial(keep, w) for w in self._protection.weights}, [batch], forward)
        if not reached:
            raise ValueError("The forward pass reached no protected layer. Pass a forward= that does.")
        name, chunks = next(iter(reached.items()))
        return name, torch.cat(chunks, dim=1)

    def drift(self, batches: Any, forward: Forward) -> list[TaskCheck]:
        """How far each recalled network has moved since the last `consolidate`: its outputs for batches, or its weights."""
        anchors, probe, tasks = self._constraint.anchors, Probe(self._protection, forward), range(len(self.tasks))
        if batches is None:
            pairs = [[list(self._through_memory(x.ranks, w).values()) for w in (anchors, None)] for x in self.tasks]
            return [TaskCheck(f"task {t}, recalled weights", change_of(*pair)) for t, pair in enumerate(pairs)]
        given = batches.items() if is_numbered(batches) else [(None, batches)]
        moved: dict[int, float] = {}
        for number, batch in ((number, batch) for number, series in given for batch in each_batch(series)):
            for task in tasks if number is None else [number]:
                with self.reading(task):
                    today = [
                        x for x in probe.outputs(batch) if x.is_floating_point()
                    ]  # rounding may flip a whole number
                with self.reading(task, anchors):
                    then = [x for x in probe.outputs(batch) if x.is_floating_point()]
                moved[task] = max(moved.get(task, 0.0), change_of(then, today))
        return [TaskCheck(f"task {task}, recalled", change) for task, change in moved.items()]

    @torch.no_grad()
    def mean_loss(self, batches: Any, forward: Forward, loss: Loss, task: int | None = None) -> float:
        """The mean loss over batches, of today's network or of a recalled task's."""
        total, count = torch.zeros((), dtype=torch.float64, device="cpu"), 0
        model = self._protection.model
        device = next(model.parameters()).device
        with eager_eval(model), nullcontext() if task is None else self.reading(task):
            for batch in each_batch(batches):
                on_device = map_tensors(batch, lambda x: x.to(device, copy=True))
                examples = len(next(tensors_in(batch)))
                total += examples * loss(forward(model, on_device), on_device).double().cpu()
                count += examples
        total, count = summed(total), int(summed(torch.tensor(count, device="cpu")))
        return float(total) / max(1, count)


def _each_group(stack: Tensor, subspaces: list[Subspace]) -> Tensor:
    return torch.stack([subspace.remove(matrix) for matrix, subspace in zip(stack, subspaces, strict=True)])


def _assign(values: Values) -> None:
    with torch.no_grad():
        for tensor, value in values.items():
            tensor.copy_(value)
