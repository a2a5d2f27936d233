"""A memory that is a uniform sample of everything seen so far."""

import torch
from torch import Tensor

from ..base import Stateful
from .replay import NO_LABEL


class Reservoir(Stateful):
    """A uniform sample of all examples offered so far. An example that is offered twice counts twice.

    The n-th example goes to row ⌊u·n⌋ with u from [0, 1), if that is below `size`: it is kept with probability size/n. While
    there is room it takes the next row.
    """

    x: Tensor
    labels: Tensor
    offered: Tensor

    def __init__(self, size: int, example: Tensor) -> None:
        self.size, self.device = size, example.device
        # Rejected examples go into one extra row, so that a step always writes a whole batch.
        self.keep("x", example.new_zeros(size + 1, *example.shape))
        self.keep("labels", torch.full((size + 1,), NO_LABEL, device=self.device))
        self.keep("offered", torch.zeros((), dtype=torch.int64, device=self.device))

    @property
    def nbytes(self) -> int:
        return self.x[: self.size].nbytes + self.labels[: self.size].nbytes

    def offer(self, x: Tensor, labels: Tensor) -> None:
        rows = self.rows_for(len(labels))
        self.x.index_copy_(0, rows, x)
        self.labels.index_copy_(0, rows, labels)
        self.offered += len(labels)

    def rows_for(self, count: int) -> Tensor:
        """Returns the rows for the next `count` examples; `size`, the extra row, for those that are rejected."""
        number = torch.arange(1, count + 1, device=self.device) + self.offered
        chance = torch.rand(count, dtype=torch.float64, device=self.device)  # float32 is too coarse for millions
        rows = torch.where(number > self.size, (chance * number).long(), number - 1).clamp(max=self.size)
        # If two examples share a row, only the later one is kept: a GPU writes in no fixed order.
        replaced = (rows[:, None] == rows).triu(1).any(1)
        return rows.masked_fill(replaced, self.size)

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Returns `count` random examples with replacement; blank ones without a label while the memory is empty."""
        kept = self.offered.clamp(max=self.size)
        rows = (torch.rand(count, dtype=torch.float64, device=self.device) * kept).long()
        return self.x[rows], self.labels[rows]
