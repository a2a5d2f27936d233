"""Gradient projection whose tasks scale weights for themselves inside the remembered subspaces (see `scaled`)."""

from abc import abstractmethod
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from remnant.models import Network

from ..gpm import Forward
from .look_ahead import LookAhead
from .scaled import ScaledLayer, ScaleMatrices, Scaling, adding


class OwnScales(LookAhead):
    """Each task computes with W + W·B·D·Bᵀ and trains its own D beside W. A subclass gives each task its B, in `scalings`.

    The patterns `scaled` select the layers to scale. Test examples need their task, which selects D, even if all tasks share
    a head.
    """

    def __init__(self, network: Network, *, scaled: Sequence[str] = ("*",), **options: Any) -> None:
        super().__init__(network, **options)
        chosen = [name for name in self.memory.subspaces if any(fnmatchcase(name, each) for each in scaled)]
        self.layers = ScaledLayer.among(network, chosen)
        self.scales = network.scales = ScaleMatrices(network.example)

    @abstractmethod
    def scalings(self, task: int) -> dict[ScaledLayer, Scaling]:
        """Returns the scaling of each layer for a task."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The task's parameters with its own D."""
        others = {D for name, D in self.scales.items() if not name.startswith(scale_name(self.task))}
        return [p for p in super().parameters if p not in others]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with adding(self.scalings(self.task)):
            return super().loss(x, y)

    logits_recordable = True

    def logits(self, x: Tensor, task: int) -> Tensor:
        with adding(self.scalings(task)):
            return super().logits(x, task)

    @torch.no_grad()
    def forward(self, task: int) -> Forward:
        own = self.scalings(task)

        def run(network: nn.Module, x: Tensor) -> object:
            with adding(own):
                return network(x, task)

        return run

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(int(D.nbytes) for D in self.scales.values())


def scale_name(task: int, layer: str = "", old: int | str = "") -> str:
    """Names a D; without a layer, returns the beginning of all names of a task. A parameter's name must not contain dots."""
    return f"{task} {layer.replace('.', '/')} {old}" if layer else f"{task} "
