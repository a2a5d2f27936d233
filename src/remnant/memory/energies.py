"""How much energy a task's inputs have along each remembered direction."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .gpm import GPM
from .gram import Energy
from .record import batches as series
from .record import recorder
from .record.recorder import Forward
from .subspace import Subspace
from .threshold import by_layer


class DirectionEnergies(NamedTuple):
    """One subspace, and the energies of the rows X of its layer's inputs."""

    layer: str
    subspace: Subspace
    along: Tensor  # ‖X·m‖² for each direction m of `subspace.basis`
    total: Tensor  # ‖X‖²


@torch.no_grad()
def direction_energies(
    memory: GPM,
    batches: Any,
    *,
    layer_samples: Mapping[str, int] | None = None,
    forward: Forward | None = None,
) -> list[DirectionEnergies]:
    """Returns the energies of a task's inputs along all directions of a memory, one entry per subspace.

    Args:
        memory: The memory.
        batches: Batches of the task, as for `GPM.consolidate`.
        layer_samples: Pattern of layer names → how many examples of each batch to use there.
        forward: A function (model, batch) that calls the model.
    """
    weights = memory._protection.weights
    grams = recorder.empty_grams(weights)
    examples = by_layer(layer_samples or {}, [weight.name for weight in weights], "layer_samples")
    sinks = {weight: grams[weight.name].add for weight in weights}
    recorder.record_rows(memory._model, sinks, series.stream(batches), forward or recorder.call, examples)
    found = []
    for weight in weights:
        for group, subspace in enumerate(weight.subspaces):
            energy = grams[weight.name].energy(group)
            if isinstance(energy, Energy):
                parts = energy.along(subspace.basis.to(energy.tensor)), energy.total()
            else:  # the counts of one-hot inputs
                parts = energy @ subspace.basis.to(energy), energy.sum()
            found.append(DirectionEnergies(weight.name, subspace, *parts))
    return found
