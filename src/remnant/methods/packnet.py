"""PackNet (Mallya & Lazebnik, 2018): each task prunes the weights it trained and leaves the pruned ones to later tasks."""

from typing import Any

import torch
from torch import Tensor

from remnant.data import Split
from remnant.models import Network
from remnant.options import Positive

from .parts.partial import Subnetworks

RETRAINING = 0.1  # the learning rate after pruning, relative to the rate before


class PackNet(Subnetworks):
    """Trains all free weights, keeps the largest of each layer, sets the rest to 0 for later tasks, and trains the kept ones.

    Of T tasks, task t = 1, …, T keeps 1/(T − t + 1) of the weights that are free in a layer, so that each task gets an equal
    part. The last `retrain` epochs of a task come after pruning, at a tenth of the learning rate. From then on the kept
    weights stay as they are. Task t answers with the weights of tasks 1 to t, so its outputs never change. Biases and norms
    belong to the first task. If early stopping ends a task before its last epochs, it is pruned and not trained again: train
    a fixed number of epochs.
    """

    name = "packnet"
    has_phases = True
    needs_task = True
    owners: list[Tensor]  # for each weight, the number of the task that keeps it, from 1; 0 if it is free
    pruned: int  # tasks that are pruned

    def __init__(self, network: Network, *, retrain: Positive = 10, **options: Any) -> None:
        super().__init__(network, **options)
        self.retrain = retrain
        self.keep("owners", [torch.zeros_like(p, dtype=torch.int16) for p in self.weights.values()], per_step=False)
        self.keep("pruned", 0)

    def refresh(self) -> None:
        """Marks the weights that the task trains: before pruning all that are free, afterwards its own."""
        trained = self.task + 1 if self.pruned > self.task else 0
        for moving, owners in zip(self.moving.values(), self.owners, strict=True):
            moving.copy_(owners == trained)

    def on_epoch_start(self, epoch: int, epochs: int, steps: int) -> None:
        if epoch >= max(1, epochs - self.retrain):
            if self.pruned == self.task:
                self.prune()
            self.lr.mul_(RETRAINING)

    @torch.no_grad()
    def prune(self) -> None:
        """Gives the largest free weights of each layer to the task."""
        tasks_left = len(self.network.classes) - self.task
        for weight, owners in zip(self.weights.values(), self.owners, strict=True):
            size = torch.where(owners == 0, weight.abs(), -1).flatten()
            count = -(-int((owners == 0).sum()) // tasks_left)
            kept = torch.zeros_like(size, dtype=torch.bool).index_fill_(0, size.topk(count).indices, True)
            owners.masked_fill_(kept.view(owners.shape), self.task + 1)
        self.pruned = self.task + 1
        self._clear()
        self.refresh()

    @torch.no_grad()
    def _clear(self) -> None:
        for weight, owners in zip(self.weights.values(), self.owners, strict=True):
            weight.masked_fill_(owners == 0, 0)

    def finish(self, task: int, train: Split) -> None:
        if self.pruned == task:
            self.prune()
        self._clear()  # early stopping may have restored weights from before pruning

    logits_recordable = True

    def logits(self, x: Tensor, task: int) -> Tensor:
        if task >= self.pruned:  # before it is pruned, a task uses all weights
            return super().logits(x, task)
        return self.subnetwork(((owners > 0) & (owners <= task + 1) for owners in self.owners), x, task)
