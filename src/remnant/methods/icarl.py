"""iCaRL (Rebuffi et al., 2017): classifies by the nearest mean of exemplars, and distils old outputs.

This is the variant that serves as a baseline for GEM (Lopez-Paz & Ranzato, 2017): one head per task, and the outputs of a
task's head as features.
"""

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from remnant.data import Split
from remnant.models import Network
from remnant.options import Positive, number

from .parts.replay import Replay

ROWS = 512  # examples that pass the network at a time; norms may use the statistics of these
Distillation = Annotated[float, number(0, 1000)]


class ICaRL(Replay):
    """SGD on loss + λ·Σ_{j<t} KL(q_j, p_j), where p_j are the probabilities that the head of task j gives to its exemplars.

    q_j are these probabilities before task t, λ is the `distillation`. A step uses one random exemplar of every class.
    Exemplars are chosen by herding when a task ends (see `herded`). All classes seen so far share the `memory` evenly, and
    old ones drop the exemplars chosen last.

    At test time the nearest class mean of the task answers. A class mean is the mean output of the class's exemplars, computed
    after each task. Before a task has exemplars, its head answers.
    """

    name = "icarl"
    needs_task = True
    x: Tensor
    labels: Tensor  # numbered through all heads
    outputs: Tensor  # q: probabilities of the classes of the exemplar's task, 0 for all others
    counts: list[int]  # exemplars per class, whose rows are in the order in which they were chosen
    means: list[Tensor]  # one row per class, one tensor per task

    def __init__(
        self, network: Network, *, memory: Positive = 1280, distillation: Distillation = 1.0, **options: Any
    ) -> None:
        super().__init__(network, **options)
        self.memory, self.distillation = memory, distillation
        example = network.example
        self.keep("x", example.new_zeros(0, *example.shape), per_step=False)
        self.keep("labels", torch.zeros(0, dtype=torch.int64, device=self.device), per_step=False)
        self.keep("outputs", example.new_zeros(0, 0), per_step=False)
        self.keep("counts", [])
        self.keep("means", [], per_step=False)

    def refresh(self) -> None:
        """Finds the rows of each class that has exemplars."""
        counts = torch.tensor(self.counts, dtype=torch.int64, device=self.device)
        self.first_rows = (counts.cumsum(0) - counts)[counts > 0]
        self.sizes = counts[counts > 0]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(self.network(x, self.task), y)
        return loss + self.distillation * self.task * self.drift() if len(self.x) else loss

    def drift(self) -> Tensor:
        """KL(q, p), the mean over one random exemplar of every class."""
        rows = self.first_rows + (torch.rand(len(self.sizes), device=self.device) * self.sizes).long()
        q, labels = self.outputs[rows], self.labels[rows]
        log_p = self.mixed.scores(self.x[rows], labels, len(self.means)).log_softmax(1)
        return F.kl_div(log_p.masked_fill(q == 0, 0), q, reduction="batchmean")

    logits_recordable = True

    def logits(self, x: Tensor, task: int) -> Tensor:
        outputs = super().logits(x, task)
        if task >= len(self.means):
            return outputs
        return -(outputs[:, None] - self.means[task]).square().sum(2)

    @torch.no_grad()
    def finish(self, task: int, train: Split) -> None:
        """Chooses exemplars of the new classes, then computes outputs and means of all exemplars."""
        self.network.eval()
        classes = self.network.classes
        share = max(1, self.memory // sum(classes[: task + 1]))
        order = torch.randperm(len(train), device=self.device)  # so that batches mix the classes
        outputs = torch.cat([self.network(train.x[rows], task) for rows in order.split(ROWS)])
        by_class = [(train.y[order] == c).nonzero().flatten() for c in range(classes[task])]
        chosen = [order[rows[herded(outputs[rows], share)]] for rows in by_class]

        def with_new(old: Tensor, new: Tensor) -> Tensor:
            return torch.cat([*(part[:share] for part in old.split(self.counts)), *(new[rows] for rows in chosen)])

        labels = self.mixed.labels(train.y, task)
        self.x, self.labels = with_new(self.x, train.x), with_new(self.labels, labels)
        self.counts = [*(min(count, share) for count in self.counts), *map(len, chosen)]
        self._measure(task + 1)
        self.refresh()

    def _measure(self, tasks: int) -> None:
        """Computes the exemplars' outputs and the class means with the current network."""
        classes = self.network.classes
        self.outputs, self.means = self.x.new_zeros(len(self.x), sum(classes[:tasks])), []
        for task in range(tasks):
            rows = (self.mixed.task_of[self.labels] == task).nonzero().flatten()
            first, count = self.mixed.offsets[task], classes[task]
            logits = self.network(self.x[rows], task)
            self.outputs[rows, first : first + count] = logits.softmax(1)
            own = F.one_hot(self.labels[rows] - first, count).to(logits.dtype)
            # A class without exemplars is infinitely far away.
            self.means.append((own.mT @ logits / own.sum(0)[:, None]).nan_to_num(nan=torch.inf))


def herded(features: Tensor, count: int) -> Tensor:
    """Chooses up to `count` rows, one after another, so that the mean of those chosen is always nearest to the mean of all."""
    mean, total = features.mean(0), features.new_zeros(features.shape[1])
    taken, chosen = features.new_zeros(len(features)), []
    for size in range(1, min(count, len(features)) + 1):
        distance = ((total + features) / size - mean).square().sum(1) + taken
        best = distance.argmin(keepdim=True)
        taken[best] = torch.inf
        total = total + features[best[0]]
        chosen.append(best)
    return torch.cat(chosen) if chosen else taken.new_zeros(0, dtype=torch.int64)
