"""Gradient projection that measures, after each task, how much the task's inputs use every remembered direction."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from remnant.data import Split
from remnant.memory import DirectionEnergies, Subspace, direction_energies

from ..gpm import GradientProjection

Forward = Callable[[nn.Module, Tensor], object]


class Measured(GradientProjection):
    """GPM whose subclasses see ‖X·m‖² for the inputs X of each task and all directions m, old and new."""

    def finish(self, task: int, train: Split) -> None:
        chosen = torch.randperm(len(train), device=self.device)[: self.samples]
        batches = [train.x[chosen]]
        how: dict[str, Any] = {"layer_samples": self.layer_samples, "forward": self.forward(task)}
        known = [subspace.rank for subspace in self.subspaces()]
        self.memory.consolidate(batches, **how)
        for energies, old in zip(direction_energies(self.memory, batches, **how), known, strict=True):
            self.measured(task, energies, old)
        if self.has_own_norms:
            self.keep_norms(task)

    def forward(self, task: int) -> Forward:
        """Returns the function that runs the network for a task."""
        return lambda network, x: network(x, task)

    def subspaces(self) -> list[Subspace]:
        """Returns all subspaces of the memory, in the order of their layers."""
        by_layer = self.memory.subspaces.values()
        return [subspace for each in by_layer for subspace in (each if isinstance(each, list) else [each])]

    @abstractmethod
    def measured(self, task: int, energies: DirectionEnergies, old: int) -> None:
        """Takes the energies of one subspace after a task was remembered. Its first `old` directions are older."""
