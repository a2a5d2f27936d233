"""A task's inputs to all protected layers: measured beside a memory, or remembered by a rule other than Eq. 5, 8 and 9."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .gpm import GPM
from .record import batches as series
from .record import recorder
from .record.recorder import Forward
from .subspaces.gram import Energy
from .subspaces.subspace import Subspace
from .subspaces.threshold import by_layer


class TaskInputs(NamedTuple):
    """The rows X of a task's inputs to one layer, or to one group of a grouped layer, and the layer's subspace."""

    layer: str
    subspace: Subspace
    energy: Energy | Tensor  # a tensor has the counts of one-hot inputs
    rows: int

    @property
    def along(self) -> Tensor:
        """‖X·m‖² for each direction m of `subspace.basis`."""
        if isinstance(self.energy, Energy):
            return self.energy.along(self.subspace.basis.to(self.energy.tensor))
        return self.energy @ self.subspace.basis.to(self.energy)

    @property
    def total(self) -> Tensor:
        """‖X‖²."""
        return self.energy.total() if isinstance(self.energy, Energy) else self.energy.sum()

    @property
    def gram(self) -> Tensor:
        """XᵀX."""
        if isinstance(self.energy, Tensor):
            return self.energy.diag()
        return self.energy.tensor.mT @ self.energy.tensor if self.energy.is_rows else self.energy.tensor


Growth = Callable[[TaskInputs, float], None]  # changes the subspace, given the threshold ε


def grow_by(memory: GPM, growth: Growth) -> None:
    """Makes `consolidate` grow each subspace with your function instead of Eq. 5, 8 and 9.

    Args:
        memory: The memory. A copy of it does not have the function.
        growth: Called with the task's inputs to a layer and ε; it changes `inputs.subspace`.
    """
    memory._growth = lambda weight, subspace, gram, group, threshold: growth(
        TaskInputs(weight.name, subspace, gram.energy(group), gram.count), threshold
    )


@torch.no_grad()
def task_inputs(
    memory: GPM,
    batches: Any,
    *,
    layer_samples: Mapping[str, int] | None = None,
    forward: Forward | None = None,
) -> list[TaskInputs]:
    """Returns a task's inputs to all protected layers without changing the memory.

    Args:
        memory: The memory.
        batches: Batches of the task, as for `GPM.consolidate`.
        layer_samples: How many examples of each batch to use, by pattern of layer names.
        forward: A function (model, batch) that calls the model.

    Returns:
        One entry per subspace.

    Example:
        >>> memory = GPM(torch.nn.Linear(4, 2, bias=False))
        >>> (inputs,) = task_inputs(memory, [torch.eye(4)])
        >>> inputs.rows, float(inputs.total)
        (4, 4.0)
    """
    weights = memory._protection.weights
    grams = recorder.empty_grams(weights)
    examples = by_layer(layer_samples or {}, [weight.name for weight in weights], "layer_samples")
    sinks = {weight: grams[weight.name].add for weight in weights}
    recorder.record_rows(memory._model, sinks, series.stream(batches), forward or recorder.call, examples)
    return [
        TaskInputs(weight.name, subspace, grams[weight.name].energy(group), grams[weight.name].count)
        for weight in weights
        for group, subspace in enumerate(weight.subspaces)
    ]
