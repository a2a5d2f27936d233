"""The remembered directions of one layer's input space."""

from __future__ import annotations

import torch
from torch import Tensor

from .gram import Energy

RANK_RULES = ("paper", "authors")


def rank_needed(
    energies: Tensor, captured: Tensor, total: Tensor, threshold: float, rule: str, *, size: int, first: bool
) -> int:
    """The smallest k with captured + Σ_{i≤k} λᵢ ≥ ε·total: Eq. 9, and Eq. 5 while nothing is captured yet.

    `rule="authors"`: in the first task the published scripts count the cumulative ratios *below* ε, one fewer.
    """
    noise = size * torch.finfo(torch.float64).eps * total
    explained = captured + torch.cumsum(energies, 0)
    if rule == "authors" and first:
        return int((explained < threshold * total).sum())
    missing = captured < threshold * total - noise
    below = int((explained < threshold * total - noise).sum())
    # A direction whose energy is rounding noise is no direction.
    return min(below + 1, int((energies > noise).sum())) if bool(missing) else 0


class Subspace:
    """Orthonormal directions M (n×k) that one layer's inputs have used, out of a capacity of n.

    Stored as M or as an orthonormal basis of what M leaves out, whichever has fewer columns. A direction may carry a
    weight in [0, 1] (1: held hard, as in the paper); weighted directions are always stored themselves.
    """

    changes = 0  # so far: by them a projection made of the subspace knows that it is out of date

    def __init__(
        self, capacity: int, *, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
    ) -> None:
        if capacity < 1:
            raise ValueError(f"A subspace needs a capacity of at least 1, not {capacity}.")
        self.capacity = capacity
        self._stored = torch.zeros(capacity, 0, dtype=dtype, device=device)
        self._is_complement = False
        self._weights: Tensor | None = None

    def __setattr__(self, name: str, value: object) -> None:
        # No operation writes into a stored tensor, so every change is one of these.
        super().__setattr__(name, value)
        super().__setattr__("changes", self.changes + 1)

    @property
    def rank(self) -> int:
        columns = self._stored.shape[1]
        return self.capacity - columns if self._is_complement else columns

    @property
    def full(self) -> bool:
        return self.rank == self.capacity

    @property
    def basis(self) -> Tensor:
        """M: n×k, orthonormal columns."""
        return self._rest(self._stored) if self._is_complement else self._stored

    @property
    def complement(self) -> Tensor:
        """An orthonormal basis of everything M leaves out: n×(n−k)."""
        return self._stored if self._is_complement else self._rest(self._stored)

    @property
    def weights(self) -> Tensor:
        """How hard each direction of `basis` is held, in [0, 1]. A copy: assign to change them, from the next step on."""
        return self._stored.new_ones(self.rank) if self._weights is None else self._weights.clone()

    @weights.setter
    def weights(self, weights: Tensor) -> None:
        self._check_weights(weights)
        self._store(self.basis, complement=False)
        self._weights = weights.detach().to(self._stored, copy=True)

    def _check_weights(self, weights: Tensor) -> None:
        if weights.shape != (self.rank,):
            raise ValueError(f"{self.rank} directions need {self.rank} weights, not shape {tuple(weights.shape)}.")
        if bool(((weights < 0) | (weights > 1)).any()):
            raise ValueError("A direction's weight lies in [0, 1]: 1 holds it hard, 0 lets it go.")

    @property
    def nbytes(self) -> int:
        """Memory kept."""
        weights = 0 if self._weights is None else self._weights.nbytes
        return self._stored.nbytes + weights

    def remove(self, x: Tensor) -> Tensor:
        """What remains of x (…×n) outside the subspace: x − (x·M)·Mᵀ (Eq. 6–8)."""
        stored = self._stored.to(x)
        if self._is_complement:
            return (x @ stored) @ stored.mT
        inside = x @ stored
        if self._weights is not None:
            inside = inside * self._weights.to(x)
        return x - inside @ stored.mT

    def keep(self, x: Tensor) -> Tensor:
        """The part of x (…×n) inside the subspace."""
        return x - self.remove(x)

    def grow(self, gram: Tensor | Energy, threshold: float, rule: str = "paper") -> int:
        """Adds the fewest directions that bring the explained energy to `threshold` (Eq. 5; Eq. 8–9 once there is a basis).

        `gram` is rowsᵀ·rows of the task's layer inputs. Returns how many were added.
        """
        energy = Energy.of(gram)
        if energy.tensor.shape[-1] != self.capacity:
            raise ValueError(f"A Gram of {energy.tensor.shape[-1]} inputs cannot grow a subspace of {self.capacity}.")
        total = energy.total()
        if self.full or not bool(total > 0):
            return 0
        old = self._stored.to(energy.tensor)
        residual = energy
        if self.rank:
            residual = energy.through(old) if self._is_complement else energy.outside(old)
        captured = (total - residual.total()).clamp(min=0)
        spectrum = residual.spectrum(enough=float(threshold * total - captured))
        count = rank_needed(
            spectrum.energies, captured, total, threshold, rule, size=self.capacity, first=self.rank == 0
        )
        count = min(count, self.capacity - self.rank)
        if count == 0:
            return 0
        if self._is_complement:
            # In N's coordinates the new directions are the leading eigenvectors, the new complement the others.
            new = spectrum.leading(count)
            self._store(_orthonormal(old @ self._rest(_orthonormal(new))), complement=True)
            return count
        weights = self._weights
        self._store(_orthonormal(torch.cat([old, spectrum.leading(count)], dim=1)), complement=False)
        if weights is not None:
            self._weights = torch.cat([weights, weights.new_ones(count)])
        elif 2 * self.rank > self.capacity:
            self._store(self._rest(_orthonormal(self._stored.to(old))), complement=True)
        return count

    def fill(self) -> int:
        """Adds every direction there is; how many those were."""
        count = self.capacity - self.rank
        self._store(self._stored.new_zeros(self.capacity, 0), complement=True)
        return count

    def copy(self) -> Subspace:
        twin = type(self)(self.capacity)
        # No operation writes into a stored tensor, so the twin may share it.
        twin._stored, twin._is_complement, twin._weights = self._stored, self._is_complement, self._weights
        return twin

    def to(self, device: torch.device) -> None:
        self._stored = self._stored.to(device)
        self._weights = None if self._weights is None else self._weights.to(device)

    def state(self) -> dict[str, Tensor]:
        """What must be saved: one tensor named after its form, and the weights if there are any."""
        state = {"complement" if self._is_complement else "basis": self._stored}
        return state if self._weights is None else {**state, "weights": self._weights}

    def load(self, state: dict[str, Tensor]) -> None:
        complement = "complement" in state
        stored = state["complement" if complement else "basis"]
        if stored.ndim != 2 or stored.shape[0] != self.capacity or stored.shape[1] > self.capacity:
            raise ValueError(f"saved directions of shape {tuple(stored.shape)} for {self.capacity} inputs")
        self._stored, self._is_complement, self._weights = stored.to(self._stored), complement, None
        if "weights" in state:
            self.weights = state["weights"]

    def _store(self, columns: Tensor, *, complement: bool) -> None:
        self._stored = columns.to(self._stored).contiguous()
        self._is_complement = complement
        self._weights = None

    @staticmethod
    def _rest(columns: Tensor) -> Tensor:
        """An orthonormal basis of what these orthonormal columns leave out."""
        if columns.shape[1] == 0:
            return torch.eye(columns.shape[0], dtype=columns.dtype, device=columns.device)
        # Householder's full Q: its last columns span the orthogonal complement.
        q: Tensor = torch.linalg.qr(columns, mode="complete")[0]
        return q[:, columns.shape[1] :]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank={self.rank}, capacity={self.capacity})"


class AxisSubspace(Subspace):
    """Some of the coordinate axes: all that one-hot inputs (an embedding's) can ever span. Stored as one flag an axis."""

    def __init__(
        self, capacity: int, *, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(capacity, dtype=dtype, device=device)
        self._stored = torch.zeros(capacity, dtype=dtype, device=device)  # the weight of each axis

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
        stored = self._stored.clone()
        stored[self._stored > 0] = weights.to(stored)
        self._stored = stored

    def remove(self, x: Tensor) -> Tensor:
        return x * (1 - self._stored.to(x))

    def grow(self, gram: Tensor | Energy, threshold: float, rule: str = "paper") -> int:
        """As for any subspace; `gram` is the Gram's diagonal, how often each index came."""
        if isinstance(gram, Energy) or gram.shape != (self.capacity,):
            raise ValueError(f"One-hot inputs have a diagonal Gram: pass the {self.capacity} counts.")
        counts = gram.to(torch.float64)
        total = counts.sum()
        if not bool(total > 0):
            return 0
        held = self._stored.to(counts.device) > 0
        energies, order = torch.sort(counts.masked_fill(held, 0), descending=True, stable=True)
        count = rank_needed(
            energies, counts[held].sum(), total, threshold, rule, size=self.capacity, first=self.rank == 0
        )
        stored = self._stored.clone()
        stored[order[:count].to(stored.device)] = 1
        self._stored = stored
        return count

    def fill(self) -> int:
        count = self.capacity - self.rank
        self._stored = torch.ones_like(self._stored)
        return count

    def state(self) -> dict[str, Tensor]:
        return {"axes": self._stored}

    def load(self, state: dict[str, Tensor]) -> None:
        if state["axes"].shape != (self.capacity,):
            raise ValueError(f"saved axes of shape {tuple(state['axes'].shape)} for {self.capacity} inputs")
        self._stored = state["axes"].to(self._stored)


def _orthonormal(columns: Tensor) -> Tensor:
    """The same span, orthonormal again: takes away what rounding and a narrower stored type have left."""
    q: Tensor = torch.linalg.qr(columns)[0]
    return q
