"""What a memory reports: how full it is, how many more tasks fit, and how far the weights have moved inside it."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from remnant.errors import UserError

RECENT = 3  # the number of last tasks from which the next ones are predicted
WEIGHTS_MOVED = (
    "Protected weights moved inside the remembered subspaces, beyond {tolerance:g} of their change: {names}. Is every "
    "optimizer that trains them attached? Were the weights changed in another way (loaded, averaged)?"
)
BUFFERS_CHANGED = (
    "Buffers or fixed parameters that the forward pass reads have changed since the task began, and old outputs with them: "
    "{names}. No attached optimizer moves them: the module, another optimizer or your own code did. A module that is kept "
    'in eval mode (norm="freeze", unsupported="freeze") must leave them alone; exclude it by name to accept the change.'
)


class LeakError(UserError, RuntimeError):
    """Something that old outputs depend on has changed: a weight inside its memory, a buffer, or the model's own code."""


class StateError(UserError, ValueError):
    """A saved memory is damaged, was not written by `GPM.save`, or belongs to another model."""


@dataclass(frozen=True)
class LayerReport:
    """One layer: its number n of inputs, its rank, and the directions that each task added."""

    name: str
    capacity: int
    rank: int
    added: tuple[int, ...]

    @property
    def share(self) -> float:
        """rank / capacity."""
        return self.rank / self.capacity

    @property
    def stopped(self) -> bool:
        """Whether the last task added nothing to a layer that is not full."""
        return 0 < self.rank < self.capacity and self.added[-1] == 0

    @property
    def tasks_left(self) -> float:
        """How many more tasks fit that add as many directions as the last ones did; inf if the last one added none."""
        recent = self.added[-RECENT:]
        pace = sum(recent) / len(recent) if recent and not self.stopped else 0.0
        spare = self.capacity - self.rank
        return math.floor(spare / pace) if pace else (math.inf if spare else 0)


@dataclass(frozen=True)
class Truncation:
    """What recall costs for one task: the loss of the network as trained, and of the recalled one."""

    task: int
    loss: float
    recalled_loss: float


@dataclass(frozen=True)
class MemoryReport:
    """The state of a memory. `print` it, or convert it with `as_dict()`.

    Attributes:
        tasks: The number of remembered tasks.
        layers: One `LayerReport` per protected layer: name, capacity, rank, directions added per task, share, tasks left.
        frozen: The names of the parameters that are fixed from the second task on.
        nbytes: The bytes that the bases take, and with `recall=True` what each task keeps for itself.
        truncations: What recall costs, for each task that was consolidated with `recall=True`.
        free: The names of the parameters that are left unprotected.
    """

    tasks: int
    layers: tuple[LayerReport, ...]
    frozen: tuple[str, ...]
    nbytes: int
    truncations: tuple[Truncation, ...] = ()
    free: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """Σn·k / Σn²: the part in use of the largest memory that this network can need (the paper's GPM_max)."""
        return sum(x.capacity * x.rank for x in self.layers) / sum(x.capacity**2 for x in self.layers)

    @property
    def tightest(self) -> LayerReport:
        """The layer that will be full first."""
        return min(self.layers, key=lambda layer: (layer.tasks_left, -layer.share))

    @property
    def tasks_left(self) -> float:
        """How many more tasks fit before the first layer is full."""
        return self.tightest.tasks_left

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as plain numbers, strings, lists and dicts."""
        layers = {x.name: {**asdict(x), "share": x.share, "tasks_left": x.tasks_left} for x in self.layers}
        whole = {"tasks": self.tasks, "share": self.share, "tasks_left": self.tasks_left, "nbytes": self.nbytes}
        truncations = [asdict(truncation) for truncation in self.truncations]
        others = {"frozen": list(self.frozen), "free": list(self.free), "truncations": truncations}
        return {**whole, "layers": layers, **others}

    def __str__(self) -> str:
        width = max(5, *(len(layer.name) for layer in self.layers))
        lines = [f"{'layer':<{width}}  capacity   rank   used  added per task"]
        for x in self.layers:
            added = " ".join(map(str, x.added)) or "–"
            lines.append(f"{x.name:<{width}}  {x.capacity:>8}  {x.rank:>5}  {x.share:>4.0%}  {added}")
        lines.append(
            f"{_count(self.tasks, 'task')} remembered, {self.share:.0%} of the largest possible memory in use."
        )
        if self.tasks:
            lines.append(self._forecast())
        costs = [
            (t.task, f"a loss of {t.loss:.4g} as trained, {t.recalled_loss:.4g} as recalled") for t in self.truncations
        ]
        lines += [f"Task {task} has {cost}." for task, cost in costs]
        if self.frozen:
            since = "since the first task" if self.tasks else "from the second task on"
            lines.append(f"Held fixed {since}: {_count(len(self.frozen), 'parameter')}, such as {self.frozen[0]}.")
        if self.free:
            lines.append(f"Left unprotected: {_count(len(self.free), 'parameter')}, such as {self.free[0]}.")
        return "\n".join(lines)

    def _forecast(self) -> str:
        tight = self.tightest
        full = [layer.name for layer in self.layers if layer.rank == layer.capacity]
        if full:
            more = f" and {len(full) - 1} more are full: they learn" if len(full) > 1 else " is full: it learns"
            return f"{full[0]!r}{more} no more. A lower threshold or a wider layer leaves room."
        if math.isinf(tight.tasks_left):
            return (
                "The last task added nothing to any layer, so tasks like it will not fill the memory. Their accuracy tells "
                "whether the layers can still learn them."
            )
        left, spare = int(tight.tasks_left), _count(tight.capacity - tight.rank, "direction")
        fit = f"About {_count(left, 'more task')} like the last ones will fit before {tight.name!r} is full."
        if not left:
            fit = f"The next task like the last ones may not fit: {tight.name!r} has only {spare} left."
        stopped = [layer.name for layer in self.layers if layer.stopped]
        more = f" and {len(stopped) - 1} more have" if len(stopped) > 1 else " has"
        return fit + (f" {stopped[0]!r}{more} stopped growing: the last task added nothing." if stopped else "")


@dataclass(frozen=True)
class LayerCheck:
    """The result for one layer, frozen parameter or buffer."""

    name: str
    leak: float  # ‖(W−W₀)·M‖ / ‖W−W₀‖ since the task began; 0 or 1 for a frozen parameter or a buffer
    rounding: float  # the leak that the weight's own number type can explain
    drift: float | None = None  # ‖(W−W₀)·x‖ / ‖W₀·x‖ over the batches given, the paper's interference activation
    buffer: bool = False
    fixed: bool = False  # a frozen parameter or a buffer


@dataclass(frozen=True)
class TaskCheck:
    """How far the model's outputs for one task have moved."""

    name: str
    drift: float | None  # ‖y − y₀‖ / ‖y₀‖; None if the outputs of then and now cannot be compared


@dataclass(frozen=True)
class Verification:
    """The result of `GPM.verify`. `print` it for a table.

    Attributes:
        layers: One `LayerCheck` per protected layer, frozen parameter and buffer: `name`, `leak`, `drift`.
        tolerance: The largest leak that is accepted.
        tasks: One `TaskCheck` per task: `name` and `drift` ‖y − y₀‖ / ‖y₀‖ of its outputs y. For the examples that the memory
            keeps, y₀ are the outputs when the task was consolidated; for batches that you passed, those at the last
            `consolidate`.
    """

    layers: tuple[LayerCheck, ...]
    tolerance: float
    tasks: tuple[TaskCheck, ...] = ()

    @property
    def leaking(self) -> tuple[LayerCheck, ...]:
        """The layers whose leak exceeds the tolerance and the rounding of their number type."""
        return tuple(x for x in self.layers if not x.leak <= max(self.tolerance, x.rounding))

    @property
    def worst(self) -> float:
        """The largest leak."""
        return max((x.leak for x in self.layers), default=0.0)

    def leaks(self, weights_message: str = WEIGHTS_MOVED) -> str:
        """Describes the leaks in a sentence; empty if there are none."""
        weights = [f"{x.name!r} ({x.leak:.2g})" for x in self.leaking if not x.buffer]
        buffers = [repr(x.name) for x in self.leaking if x.buffer]
        found = [(weights_message, weights), (BUFFERS_CHANGED, buffers)]
        return " ".join(text.format(names=", ".join(names), tolerance=self.tolerance) for text, names in found if names)

    def __str__(self) -> str:
        if not self.layers:
            return "No task is remembered yet, so nothing could have moved."
        width = max(5, *(len(name) for name in [x.name for x in self.layers] + [x.name for x in self.tasks]))
        lines = [f"{'layer':<{width}}  leak      drift"]
        still = [x for x in self.layers if x.fixed and not x.leak]
        shown = [x for x in self.layers if x not in still]
        lines += [f"{x.name:<{width}}  {x.leak:.1e}   {_shown(x.drift)}" for x in shown]
        lines += [f"Unchanged: {_count(len(still), 'fixed tensor')}, such as {still[0].name}."] if still else []
        if self.tasks:
            lines.append(f"{'outputs':<{width}}            drift")
            lines += [f"{x.name:<{width}}            {_shown(x.drift)}" for x in self.tasks]
            if any("batches" in x.name for x in self.tasks) and any("batches" not in x.name for x in self.tasks):
                lines.append(
                    "The drift of batches counts from the last consolidate, that of kept examples from their own task's."
                )
        else:
            lines.append(
                "No outputs were compared: a memory that was loaded or copied, or made with keep_examples=False, has no "
                "examples of its tasks. Pass batches. (The outputs of a model that returns no tensors cannot be compared.)"
            )
        return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _shown(drift: float | None) -> str:
    return "–" if drift is None else f"{drift:.1e}"


def check_still(name: str, now: Tensor, then: Tensor, *, buffer: bool = False) -> LayerCheck:
    """Checks a frozen parameter or a buffer, which must not change, except that a module may round it again."""
    start = then.to(now)
    still = torch.equal(now, start)
    if not still and now.is_floating_point():
        still = bool((now - start).abs().max() <= torch.finfo(now.dtype).eps * start.abs().max())
    return LayerCheck(name, float(not still), 0.0, buffer=buffer, fixed=True)
