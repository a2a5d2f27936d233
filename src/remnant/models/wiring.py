"""Which layer reads which, for methods that mask units. A network describes it once in its `wiring` method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import nn


class Maker(NamedTuple):
    """A layer that computes units, the norm after it (or None), and the units it reads (None for the network's input)."""

    layer: nn.Linear | nn.Conv2d
    norm: nn.Module | None
    reads: Units | None


@dataclass(frozen=True, eq=False)
class Units:
    """Outputs that later layers read together: those of one layer, or the sum of several layers' outputs.

    The outputs of a sum are units of their own. Every term of the sum must consist of units, also a plain shortcut.

    Args:
        at: the module whose output they are, with one unit per channel or feature.
        made_by: the layers whose weights compute them.
    """

    at: nn.Module
    made_by: tuple[Maker, ...]

    @property
    def count(self) -> int:
        return int(self.made_by[0].layer.weight.shape[0])


def chain(*layers: tuple[nn.Linear | nn.Conv2d, nn.Module | None, nn.Module]) -> list[Units]:
    """The wiring of layers that read one another in turn: each with its norm or None, and the module of its units."""
    units: list[Units] = []
    for layer, norm, at in layers:
        units.append(Units(at, (Maker(layer, norm, units[-1] if units else None),)))
    return units
