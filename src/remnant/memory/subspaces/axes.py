"""The remembered indices of an embedding, whose inputs are one-hot."""

from typing import Any, Self

import torch
from torch import Tensor

from ..saving import valid
from .gram import GroupGram
from .subspace import Subspace, rank_needed


class AxisSubspace(Subspace):
    """A set of coordinate axes, which is all that one-hot inputs can span. It stores a weight per axis: 0 if it is free."""

    _order: Tensor  # of an ordered subspace: the axes in the order in which they were added

    def __init__(self, capacity: int, **placement: Any) -> None:
        super().__init__(capacity, **placement)
        self._store(self._stored.new_zeros(capacity))
        self._order = torch.zeros(0, dtype=torch.long, device=self._stored.device)

    @property
    def rank(self) -> int:
        return int((self._stored > 0).sum())

    @property
    def basis(self) -> Tensor:
        return torch.diag(torch.ones_like(self._stored))[:, self._stored > 0]

    @property
    def complement(self) -> Tensor:
        return torch.diag(torch.ones_like(self._stored))[:, self._stored == 0]

    @property
    def weights(self) -> Tensor:
        return self._stored[self._stored > 0]

    @weights.setter
    def weights(self, weights: Tensor) -> None:
        self._check_weights(weights)
        self._store(self._stored.masked_scatter(self._stored > 0, weights.detach().to(self._stored)))

    def remove(self, x: Tensor) -> Tensor:
        return x * (1 - self._stored.to(x))

    def grow(self, gram: Tensor | GroupGram, threshold: float, rule: str = "paper") -> int:
        """Adds the fewest indices that bring the explained energy to the threshold; `gram` counts how often each occurred."""
        if isinstance(gram, GroupGram) or gram.shape != (self.capacity,):
            raise ValueError(f"One-hot inputs have a diagonal Gram: pass the {self.capacity} counts.")
        counts = gram.to(torch.float64)
        total = counts.sum()
        if not bool(total > 0):
            return 0
        used = self._stored.to(counts.device) > 0
        energies, order = torch.sort(counts.masked_fill(used, 0), descending=True, stable=True)
        captured = counts[used].sum()
        count = rank_needed(energies, captured, total, threshold, rule, size=self.capacity, first=self.rank == 0)
        self._use(order[:count])
        return count

    def _use(self, axes: Tensor) -> None:
        axes = axes.to(self._stored.device)
        self._order = torch.cat([self._order.to(axes), axes])
        self._store(self._stored.index_fill(0, axes, 1))

    def fill(self) -> int:
        missing = torch.nonzero(self._stored == 0).flatten()
        self._use(missing)
        return len(missing)

    def prefix(self, count: int) -> Self:
        part = type(self)(self.capacity, ordered=True)
        part._use(self._order[:count])
        return part

    def all_but(self, first: int, last: int) -> Self:
        part = type(self)(self.capacity)
        part._store(part._stored.to(self._stored) + 1)
        part._store(part._stored.index_fill(0, self._order[first:last], 0))
        return part

    def copy(self, device: torch.device | None = None) -> Self:
        twin = super().copy(device)
        twin._order = self._order.to(device)
        return twin

    def state(self) -> dict[str, Tensor]:
        return {"axes": self._stored, "order": self._order} if self.ordered else {"axes": self._stored}

    def load(self, state: dict[str, Tensor]) -> Self:
        axes = valid.tensor("the axes", state["axes"], self._stored)
        if not bool(((axes >= 0) & (axes <= 1)).all()):
            raise ValueError("an axis has a weight outside [0, 1]")
        if self.ordered:
            order = valid.tensor("the order", state["order"], self._order.new_empty(len(state["order"])))
            named, used = order.tolist(), torch.nonzero(axes).flatten().tolist()
            if len(set(named)) < len(named) or not set(used) <= set(named) <= set(range(self.capacity)):
                raise ValueError("the order does not name each used axis once")
            self._order = order.to(self._stored.device)
        self._store(axes.to(self._stored))
        return self
