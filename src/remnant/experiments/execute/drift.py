"""What a run keeps of its first task, to tell at the end how far the layers have drifted for its inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from remnant.data import Split
from remnant.memory import activation_drift
from remnant.methods import Method

EXAMPLES = 1000  # of the test set: of a convolutional layer they are millions of activations


class Drift:
    """The network as the first task left it, where it was asked for and the method has subspaces to keep it by.

    The paper does not say which of the task's data its histograms are made of. Ours are of test data, on which forgetting
    is measured, and of the layers that the method protects.
    """

    def __init__(self, *, asked: bool) -> None:
        self.asked = asked
        self.first: dict[str, Tensor] | None = None

    def learnt(self, task: int, method: Method) -> None:
        """After each task."""
        if self.asked and task == 0 and method.ranks():
            self.first = {name: tensor.detach().clone() for name, tensor in method.network.state_dict().items()}

    def histograms(self, method: Method, test: Split, batch: int) -> dict[str, Any] | None:
        """As `drift.json` has them, from a network that has learnt its last task; None where nothing was kept."""
        if self.first is None:
            if self.asked and method.ranks():
                raise ValueError("the run was begun without it, and its first task's network is gone")
            return None
        # Shuffled, always in the same way: a test set sorted by class would be normalised away, batch by batch.
        order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))[:EXAMPLES].to(test.x.device)
        parts = [part for part in order.split(batch) if len(part) > 1 or len(order) == 1]
        found = activation_drift(method.network, self.first, ((test.x[part], 0) for part in parts), method.ranks())
        return {layer: {"edges": each.edges, "counts": each.counts} for layer, each in found.items()}

    def state_dict(self) -> dict[str, Tensor] | None:
        return self.first

    def load_state_dict(self, state: dict[str, Tensor] | None) -> None:
        self.first = state
