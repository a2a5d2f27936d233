"""The loss of a batch that mixes tasks: each example uses the head of its own task, in one pass."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant.models import Network

NO_LABEL = -1  # marks a row that only fills the batch and has no weight in the loss


class MixedLoss(nn.Module):
    """Mean cross-entropy of examples of several tasks.

    With one head per task, labels are numbered through all heads, and an example's scores from other tasks' heads are masked.
    All heads form one matrix, so twenty heads take as many kernels as two.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        sizes = network.classes
        self.offsets = [sum(sizes[:t]) for t in range(len(sizes))]
        task_of = torch.cat([torch.full((size,), t) for t, size in enumerate(sizes)])
        self.task_of = task_of.to(next(network.parameters()).device)
        # others[c] marks the outputs of the tasks that class c does not belong to.
        self.others = self.task_of[:, None] != self.task_of[None, :]

    def labels(self, y: Tensor, task: int) -> Tensor:
        """Numbers a task's own labels through all heads."""
        return y + self.offsets[task] if self.network.multi_head else y

    def forward(self, x: Tensor, labels: Tensor, tasks: int) -> Tensor:
        """Returns the loss of examples of the first `tasks` tasks."""
        if not self.network.multi_head:
            return F.cross_entropy(self.network(x), labels, ignore_index=NO_LABEL)
        heads = [self.network.head_of(task) for task in range(tasks)]
        weight = torch.cat([head.weight for head in heads])
        bias = torch.cat([head.bias for head in heads]) if heads[0].bias is not None else None
        scores = F.linear(self.network.features(x), weight, bias)
        # NO_LABEL, -1, selects the last row, so that no example has all its scores masked.
        others = self.others[: len(weight), : len(weight)][labels]
        return F.cross_entropy(scores.masked_fill(others, -torch.inf), labels, ignore_index=NO_LABEL)
