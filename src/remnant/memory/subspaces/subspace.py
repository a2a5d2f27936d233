"""The remembered directions of one layer's input space."""

from typing import Self

import torch
from torch import Tensor

from ..saving import valid
from .gram import GroupGram

RANK_RULES = ("paper", "authors", "ranked")


def rank_needed(
    energies: Tensor, captured: Tensor, total: Tensor, threshold: float, rule: str, *, size: int, first: bool
) -> int:
    """The smallest k with captured + Σ_{i≤k} λᵢ ≥ ε·total: Eq. 9, and Eq. 5 while nothing is captured yet.

    With `rule="authors"`, the first task counts the cumulative ratios *below* ε, one fewer, as the published scripts do.
    """
    noise = size * torch.finfo(torch.float64).eps * total
    explained = captured + torch.cumsum(energies, 0)
    if rule == "authors" and first:
        return int((explained < threshold * total).sum())
    missing = captured < threshold * total - noise
    below = int((explained < threshold * total - noise).sum())
    # A direction whose energy is only rounding noise is not added.
    return min(below + 1, int((energies > noise).sum())) if bool(missing) else 0


def ranked_count(old: Tensor, new: Tensor, enough: Tensor) -> int:
    """How many of the `new` energies are among the fewest, old and new together, that sum up to `enough`."""
    energies, order = torch.sort(torch.cat([old, new]), descending=True, stable=True)
    chosen = order[: int((energies.cumsum(0) < enough).sum()) + 1]
    return int((chosen >= len(old)).sum())


class Subspace:
    """The orthonormal directions M (n × k) that one layer's inputs have used.

    `remove` computes the part of rows or gradients outside them, x − (x·M)·Mᵀ (Eq. 6–8), and `grow` adds the directions
    of a task (Eq. 5, 9). It stores M, or an orthonormal basis of its complement if that has fewer columns.
    A direction may have a weight in [0, 1]; 1 protects it fully, as in the paper.

    Args:
        capacity: The number n of inputs.
        dtype: The type of the stored directions.
        device: Their device.
        ordered: Whether to keep the directions in the order in which they were added, which `prefix` needs. The complement
            is then never stored.

    Example:
        >>> subspace = Subspace(3)
        >>> rows = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        >>> subspace.grow(rows.T @ rows, threshold=0.7)
        1
        >>> subspace.remove(torch.ones(3, dtype=torch.float64)).tolist()
        [0.0, 1.0, 1.0]
    """

    def __init__(
        self,
        capacity: int,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        ordered: bool = False,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"A subspace needs a capacity of at least 1, not {capacity}.")
        self.capacity, self.ordered = capacity, ordered
        self.changes = 0  # a projection that was made of the subspace is out of date when this has grown
        self._store(torch.zeros(capacity, 0, dtype=dtype, device=device))

    def _store(self, stored: Tensor, *, complement: bool = False, weights: Tensor | None = None) -> None:
        """Replaces the stored tensors, which are never changed in place, so that copies may share them."""
        self._stored, self._is_complement, self._weights = stored, complement, weights
        self.changes += 1

    def share(self, columns: Tensor, *, complement: bool) -> None:
        """Replaces the stored columns by a view of a projection's padded copy, so that they are in RAM only once."""
        kind = complement, columns.dtype, columns.device
        if kind == (self._is_complement, self._stored.dtype, self._stored.device):
            self._stored = columns[:, : self._stored.shape[1]]

    @property
    def rank(self) -> int:
        """The number k of directions."""
        columns = self._stored.shape[1]
        return self.capacity - columns if self._is_complement else columns

    @property
    def basis(self) -> Tensor:
        """M: n×k, orthonormal columns."""
        return _complement(self._stored) if self._is_complement else self._stored

    @property
    def complement(self) -> Tensor:
        """An orthonormal basis of everything outside M: n×(n−k)."""
        return self._stored if self._is_complement else _complement(self._stored)

    @property
    def weights(self) -> Tensor:
        """How strongly each direction of `basis` is protected, in [0, 1]. This is a copy; assign a tensor to change it."""
        return self._stored.new_ones(self.rank) if self._weights is None else self._weights.clone()

    @weights.setter
    def weights(self, weights: Tensor) -> None:
        self._check_weights(weights)
        self._store(self.basis.contiguous(), weights=weights.detach().to(self._stored, copy=True))

    def use_weights(self) -> None:
        """Stores a weight for each direction from now on, and the directions themselves instead of their complement."""
        self.weights = self.weights

    def _check_weights(self, weights: Tensor) -> None:
        if weights.shape != (self.rank,):
            raise ValueError(f"{self.rank} directions need {self.rank} weights, not shape {tuple(weights.shape)}.")
        if not bool(((weights >= 0) & (weights <= 1)).all()):  # NaN is outside, too
            raise ValueError("The weight of a direction lies in [0, 1]: 1 protects it fully, 0 does not protect it.")

    @property
    def nbytes(self) -> int:
        """The bytes that the stored directions take."""
        return sum(tensor.nbytes for tensor in self.state().values())

    def remove(self, x: Tensor) -> Tensor:
        """Returns what remains of x (…×n) outside the subspace: x − (x·M)·Mᵀ (Eq. 6–8)."""
        stored = self._stored.to(x)
        if self._is_complement:
            return (x @ stored) @ stored.mT
        inside = x @ stored
        if self._weights is not None:
            inside = inside * self._weights.to(x)
        return x - inside @ stored.mT

    def grow(self, gram: Tensor | GroupGram, threshold: float, rule: str = "paper") -> int:
        """Adds the fewest directions that bring the explained energy to the threshold (Eq. 5; Eq. 8–9 for later tasks).

        Args:
            gram: rowsᵀ·rows of the task's layer inputs (n×n).
            threshold: ε, in (0, 1].
            rule: "paper"; "authors" for the count of the published scripts; or "ranked", which ranks old and new directions
                together by their energy and adds the new ones among the fewest that reach the threshold, as TRGP does.

        Returns:
            The number of added directions.
        """
        new = gram if isinstance(gram, GroupGram) else GroupGram.of(gram)
        if new.tensor.shape[-1] != self.capacity:
            raise ValueError(f"A Gram of {new.tensor.shape[-1]} inputs cannot grow a subspace of {self.capacity}.")
        total, room = new.energy(), self.capacity - self.rank
        if not room or not bool(total > 0):
            return 0
        old = self._stored.to(new.tensor)
        residual = new.outside(old, complement=self._is_complement) if self.rank else new
        captured = (total - residual.energy()).clamp(min=0)
        ranked = rule == "ranked" and self.rank > 0
        values, vectors = residual.spectrum(enough=float(threshold * total - (0 if ranked else captured)))
        count = rank_needed(values, captured, total, threshold, rule, size=self.capacity, first=self.rank == 0)
        if ranked:
            noise = self.capacity * torch.finfo(torch.float64).eps * total
            real = values[values > noise]
            count = ranked_count(new.along(self.basis.to(old)), real, threshold * total - noise)
        if threshold == 1 and residual.exact:  # every direction, however little energy it has
            count = int((values > (self.capacity * torch.finfo(torch.float64).eps) ** 2 * total).sum())
        count = min(count, room)
        if count:
            self._add(old, residual.directions(values, vectors, count))
        return count

    def _add(self, old: Tensor, new: Tensor) -> None:
        complement, weights = self._is_complement, self._weights
        if self.ordered:  # the old columns keep every bit, so that a prefix is always the same
            for _ in range(2):  # once leaves rounding behind
                new = _orthonormal(new - old @ (old.mT @ new))
            columns = torch.cat([self._stored, new.to(self._stored)], dim=1)
            weights = None if weights is None else torch.cat([weights, weights.new_ones(new.shape[1])])
        elif complement:
            # In the complement's coordinates, `new` are the leading eigenvectors and the others stay outside.
            columns = _orthonormal(old @ _complement(_orthonormal(new)))
        else:
            columns = _orthonormal(torch.cat([old, new], dim=1)).to(self._stored)
            weights = None if weights is None else torch.cat([weights, weights.new_ones(new.shape[1])])
            if weights is None and 2 * columns.shape[1] > self.capacity:
                columns, complement = _complement(_orthonormal(columns.to(old))), True
        self._store(columns.to(self._stored).contiguous(), complement=complement, weights=weights)

    def fill(self) -> int:
        """Adds every missing direction and returns their number."""
        count = self.capacity - self.rank
        if self.ordered:
            self._add(self._stored, self.complement)
        else:
            self._store(self._stored.new_zeros(self.capacity, 0), complement=True)
        return count

    def prefix(self, count: int) -> Self:
        """Returns the subspace of the first `count` directions that were added; it needs an ordered subspace."""
        part = self.copy()
        part._store(self._stored[:, :count])
        return part

    def all_but(self, first: int, last: int) -> Self:
        """Returns the subspace of everything outside the directions number `first` to `last` of an ordered subspace."""
        part = type(self)(self.capacity)
        part._store(self._stored[:, first:last], complement=True)
        return part

    def copy(self, device: torch.device | None = None) -> Self:
        """Returns an independent copy, on another device if one is given."""
        twin = type(self)(self.capacity, ordered=self.ordered)
        weights = None if self._weights is None else self._weights.to(device)
        twin._store(self._stored.to(device), complement=self._is_complement, weights=weights)
        return twin

    def state(self) -> dict[str, Tensor]:
        """Returns the stored directions, named after their form, and their weights if there are any."""
        state = {"complement" if self._is_complement else "basis": self._stored}
        return state if self._weights is None else {**state, "weights": self._weights}

    def load(self, state: dict[str, Tensor]) -> Self:
        """Replaces the directions by those of a `state`, and returns the subspace."""
        if set(state) not in ({"basis"}, {"complement"}, {"basis", "weights"}):
            raise ValueError(f"a subspace has {list(state)}")
        complement = "complement" in state
        if complement and self.ordered:
            raise ValueError("the saved directions have lost their order, which recall needs")
        stored = valid.directions("a basis", state["complement" if complement else "basis"], self.capacity)
        self._store(stored.to(self._stored), complement=complement)
        if "weights" in state:
            self.weights = valid.tensor("a weight", state["weights"], self._stored.new_empty(self.rank))
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank={self.rank}, capacity={self.capacity})"


def _complement(columns: Tensor) -> Tensor:
    """An orthonormal basis of everything outside these orthonormal columns."""
    if columns.shape[1] == 0:
        return torch.eye(columns.shape[0], dtype=columns.dtype, device=columns.device)
    # The last columns of Householder's full Q span the orthogonal complement.
    q: Tensor = torch.linalg.qr(columns, mode="complete")[0]
    return q[:, columns.shape[1] :]


def _orthonormal(columns: Tensor) -> Tensor:
    """The same span with orthonormal columns: removes what rounding and a narrower stored type have left."""
    q: Tensor = torch.linalg.qr(columns)[0]
    return q
