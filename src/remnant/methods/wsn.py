"""Winning subnetworks (Kang et al., 2022): every task selects some of the weights, which then never change."""

import math
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant.data import Split
from remnant.models import Network
from remnant.options import number

from .parts.partial import Subnetworks


class WSN(Subnetworks):
    """Trains W and scores s together, through weights W ⊙ m. The mask m selects the share c of a layer with the largest |s|.

    c is the `density`. m has the gradient of |s| (straight-through). A weight that an earlier task has selected no longer
    moves, but a later task may select it too. A task starts from the scores of the task before it. Task t answers with its own
    mask, so its outputs never change, and test examples need their task, even if all tasks share a head. Biases and norms
    belong to the first task.

    The capacity counts all weights that some task has selected, all other parameters, and one bit of 32 for each weight and
    task. The paper's capacities are lower, because it counts Huffman codes of the masks, about a fifth of their size.
    """

    name = "wsn"
    masks: dict[str, Tensor]  # task → its masks in all layers, as bits

    def __init__(
        self, network: Network, *, density: Annotated[float, number(0, 1, above=True)] = 0.5, **options: Any
    ) -> None:
        super().__init__(network, **options)
        self.sizes = [p.numel() for p in self.weights.values()]
        self.counts = [max(1, round(density * size)) for size in self.sizes]
        # Part of the network, so that early stopping restores the scores too.
        self.scores = network.scores = nn.ParameterList(map(torch.empty_like, self.weights.values()))
        for scores in self.scores:
            nn.init.kaiming_uniform_(scores, a=math.sqrt(5))
        self.keep("masks", {}, per_step=False)
        self.refresh()

    def refresh(self) -> None:
        """Marks the weights that may move: those that no task has selected."""
        remembered = [self.masks_of(int(task)) for task in self.masks]
        for layer, moving in enumerate(self.moving.values()):
            moving.fill_(1)
            for masks in remembered:
                moving.masked_fill_(masks[layer], 0)
        free = sum(int(moving.sum()) for moving in self.moving.values()) if self.masks else 0
        bits = len(self.masks) * sum(self.sizes) / 32
        self.capacity = (self.base_size - free + bits) / self.base_size

    def selected(self) -> list[Tensor]:
        """Returns the masks of the current task, which have the gradients of |s|."""
        masks = []
        for scores, count in zip(self.scores, self.counts, strict=True):
            size = scores.abs()
            least = size.detach().flatten().topk(count, sorted=False).values.min()
            masks.append((size.detach() >= least) + (size - size.detach()))  # the second term is 0
        return masks

    def masks_of(self, task: int) -> list[Tensor]:
        if str(task) not in self.masks:  # the task is being learnt
            return self.selected()
        parts = unpacked(self.masks[str(task)], sum(self.sizes)).split(self.sizes)
        return [part.view(weight.shape) for part, weight in zip(parts, self.weights.values(), strict=True)]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(x, self.task), y)

    @torch.no_grad()
    def finish(self, task: int, train: Split) -> None:
        """Remembers the task's masks, and holds the weights that they select."""
        self.masks[str(task)] = packed(torch.cat([mask.flatten() > 0 for mask in self.selected()]))
        self.refresh()

    logits_recordable = True

    def logits(self, x: Tensor, task: int) -> Tensor:
        return self.subnetwork(self.masks_of(task), x, task)

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(int(scores.nbytes) for scores in self.scores)


def packed(mask: Tensor) -> Tensor:
    """Returns the entries of a mask as bits, eight to a byte."""
    bits = F.pad(mask.flatten().to(torch.uint8), (0, -mask.numel() % 8)).view(-1, 8)
    return (bits << torch.arange(8, dtype=torch.uint8, device=mask.device)).sum(1, dtype=torch.uint8)


def unpacked(bits: Tensor, count: int) -> Tensor:
    """Returns the first `count` bits as a mask of True and False."""
    return ((bits[:, None] >> torch.arange(8, dtype=torch.uint8, device=bits.device)) & 1).flatten()[:count].bool()
