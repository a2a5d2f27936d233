"""Records how far the layers drift for inputs of the first task (the paper's interference activation, Sec. 7)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from remnant.data import Split
from remnant.memory import activation_drift
from remnant.methods import Method

EXAMPLES = 1000  # of the test set; a convolutional layer has millions of activations for them


class Drift:
    """Keeps the network as the first task left it, if the method protects layers.

    The paper does not say which data its histograms show. Ours show test data, on which forgetting is measured.
    """

    first: dict[str, Tensor] | None = None

    def after_first_task(self, method: Method) -> None:
        if method.ranks():
            self.first = {name: tensor.detach().clone() for name, tensor in method.network.state_dict().items()}

    def histograms(self, method: Method, test: Split, batch: int) -> dict[str, Any] | None:
        """The content of `drift.json` after the last task; None if the method protects no layers."""
        if self.first is None:
            if method.ranks():
                raise ValueError("the run began without recording it, and the first task's network is gone")
            return None
        # Shuffled, always in the same order: a batch of one class would be normalised away.
        order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))[:EXAMPLES].to(test.x.device)
        parts = [part for part in order.split(batch) if len(part) > 1 or len(order) == 1]
        found = activation_drift(method.network, self.first, ((test.x[part], 0) for part in parts), method.ranks())
        return {layer: {"edges": each.edges, "counts": each.counts} for layer, each in found.items()}
