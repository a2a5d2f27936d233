"""Gradient projection that measures, after each task, how much the task's inputs use every remembered direction."""

from abc import abstractmethod
from typing import Any

import torch

from remnant.data import Split
from remnant.memory import Subspace, TaskInputs, task_inputs

from ..gpm import Forward, GradientProjection


class Measured(GradientProjection):
    """GPM whose subclasses see ‖X·m‖² for the inputs X of each task and all directions m, old and new."""

    def finish(self, task: int, train: Split, forward: Forward | None = None) -> None:
        chosen = torch.randperm(len(train), device=self.device)[: self.samples]
        batches = [train.x[chosen]]
        how: dict[str, Any] = {
            "layer_samples": self.layer_samples,
            "forward": forward or (lambda network, x: network(x, task)),
        }
        known = [subspace.rank for subspace in self.subspaces()]
        self.memory.consolidate(batches, **how)
        for inputs, old in zip(task_inputs(self.memory, batches, **how), known, strict=True):
            self.measured(task, inputs, old)
        if self.has_own_norms:
            self.keep_norms(task)

    def subspaces(self) -> list[Subspace]:
        """Returns all subspaces of the memory, in the order of their layers."""
        by_layer = self.memory.subspaces.values()
        return [subspace for each in by_layer for subspace in (each if isinstance(each, list) else [each])]

    @abstractmethod
    def measured(self, task: int, inputs: TaskInputs, old: int) -> None:
        """Takes the inputs of one layer after a task was remembered. The first `old` directions are older."""
