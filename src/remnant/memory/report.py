"""How full a memory is, and how many more tasks fit."""

import math
from dataclasses import asdict, dataclass
from typing import Any

RECENT = 3  # the number of last tasks from which the next ones are predicted


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
    def tasks_left(self) -> float:
        """How many more tasks fit that add as many directions as the last ones did; inf if they added none."""
        recent = self.added[-RECENT:]
        pace = sum(recent) / len(recent) if recent else 0.0
        spare = self.capacity - self.rank
        return math.floor(spare / pace) if pace else (math.inf if spare else 0)


@dataclass(frozen=True)
class MemoryReport:
    """The state of a memory. `print` it, or convert it with `as_dict()`.

    Attributes:
        tasks: The number of remembered tasks.
        layers: One `LayerReport` per protected layer: name, capacity, rank, directions added per task, share, tasks left.
        frozen: The names of the parameters that are fixed from the second task on.
        nbytes: The bytes that the bases take.
    """

    tasks: int
    layers: tuple[LayerReport, ...]
    frozen: tuple[str, ...]
    nbytes: int

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
        return {**whole, "layers": layers, "frozen": list(self.frozen)}

    def __str__(self) -> str:
        width = max(5, *(len(layer.name) for layer in self.layers))
        lines = [f"{'layer':<{width}}  capacity   rank   used  added per task"]
        for x in self.layers:
            added = " ".join(map(str, x.added)) or "–"
            lines.append(f"{x.name:<{width}}  {x.capacity:>8}  {x.rank:>5}  {x.share:>4.0%}  {added}")
        lines.append(f"{self.tasks} task(s) remembered, {self.share:.0%} of the largest possible memory in use.")
        if self.tasks:
            lines.append(self._forecast())
        if self.frozen:
            since = "since the first task" if self.tasks else "from the second task on"
            lines.append(f"Held fixed {since}: {len(self.frozen)} parameter(s), such as {self.frozen[0]}.")
        return "\n".join(lines)

    def _forecast(self) -> str:
        tight = self.tightest
        full = [layer.name for layer in self.layers if layer.rank == layer.capacity]
        if full:
            which = f"{full[0]!r} is full: it learns"
            if len(full) > 1:
                which = f"{full[0]!r} and {len(full) - 1} more are full: they learn"
            return f"{which} no more. A lower threshold or a wider layer leaves room."
        if math.isinf(tight.tasks_left):
            return "Tasks like the last ones add nothing new: there is room for any number of them."
        return f"About {tight.tasks_left:.0f} more task(s) like the last ones fit before {tight.name!r} is full."
