"""A task's inputs to one layer, as a rule that grows its subspace gets them."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from ..subspaces.gram import GroupGram
from ..subspaces.subspace import Subspace


class TaskInputs(NamedTuple):
    """The rows X of a task's inputs to one layer, or to one group of a grouped layer, and the layer's subspace."""

    layer: str
    subspace: Subspace
    rows_gram: GroupGram | Tensor  # what `Subspace.grow` takes; a tensor has the counts of one-hot inputs
    rows: int

    @property
    def along(self) -> Tensor:
        """‖X·m‖² for each direction m of `subspace.basis`."""
        if isinstance(self.rows_gram, GroupGram):
            return self.rows_gram.along(self.subspace.basis.to(self.rows_gram.tensor))
        return self.rows_gram[self.subspace.state()["axes"].to(self.rows_gram.device) > 0]

    @property
    def total(self) -> Tensor:
        """‖X‖²."""
        return self.rows_gram.energy() if isinstance(self.rows_gram, GroupGram) else self.rows_gram.sum()

    @property
    def gram(self) -> Tensor:
        """XᵀX."""
        if isinstance(self.rows_gram, Tensor):
            return self.rows_gram.diag()
        tensor = self.rows_gram.tensor
        return tensor.mT @ tensor if self.rows_gram.is_rows else tensor


Growth = Callable[[TaskInputs, float], None]  # changes the subspace, given the threshold ε
