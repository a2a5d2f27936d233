"""What a memory holds, and how much room is left."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

RECENT = 3  # how many of the last tasks say what the next ones will need


@dataclass(frozen=True)
class LayerReport:
    name: str
    capacity: int
    rank: int
    added: tuple[int, ...]

    @property
    def share(self) -> float:
        return self.rank / self.capacity

    @property
    def tasks_left(self) -> float:
        """How many more tasks fit that add as many directions as the last ones did; inf where they added none."""
        recent = self.added[-RECENT:]
        pace = sum(recent) / len(recent) if recent else 0.0
        spare = self.capacity - self.rank
        return math.floor(spare / pace) if pace else (math.inf if spare else 0)


@dataclass(frozen=True)
class MemoryReport:
    """Per layer: capacity, rank, share used, directions added per task. `print` it, or take `as_dict()`."""

    tasks: int
    layers: tuple[LayerReport, ...]
    frozen: tuple[str, ...]

    @property
    def share(self) -> float:
        """Of the largest memory this network can need (the paper's GPM_max, Σn²), how much is in use (Σn·k)."""
        return sum(x.capacity * x.rank for x in self.layers) / sum(x.capacity**2 for x in self.layers)

    @property
    def tightest(self) -> LayerReport:
        return min(self.layers, key=lambda layer: (layer.tasks_left, -layer.share))

    @property
    def tasks_left(self) -> float:
        """Until the first layer is full."""
        return self.tightest.tasks_left

    def as_dict(self) -> dict[str, Any]:
        layers = {x.name: {**asdict(x), "share": x.share, "tasks_left": x.tasks_left} for x in self.layers}
        whole = {"tasks": self.tasks, "share": self.share, "tasks_left": self.tasks_left}
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
