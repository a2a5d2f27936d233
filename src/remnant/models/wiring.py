"""Which layer feeds which, for methods that act on units: said by the network once, sizes read off its modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import nn


class Maker(NamedTuple):
    """A layer, the norm that follows it, and the units it reads; None is no norm, and the network's own input."""

    layer: nn.Linear | nn.Conv2d
    norm: nn.Module | None
    reads: Units | None


@dataclass(frozen=True, eq=False)
class Units:
    """Outputs that later layers read as one: what a layer makes, or a sum of what several make.

    A sum's units are units of their own. Whatever else goes into it (a shortcut without weights) must be units too.

    Args:
        at: the module whose output they are, one channel or feature each.
        made_by: whose weights make them.
    """

    at: nn.Module
    made_by: tuple[Maker, ...]

    @property
    def count(self) -> int:
        return int(self.made_by[0].layer.weight.shape[0])


def chain(*layers: tuple[nn.Linear | nn.Conv2d, nn.Module | None, nn.Module]) -> list[Units]:
    """The wiring of layers that read one another in turn: each with its norm if it has one, and where its units are."""
    units: list[Units] = []
    for layer, norm, at in layers:
        units.append(Units(at, (Maker(layer, norm, units[-1] if units else None),)))
    return units
