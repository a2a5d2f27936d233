"""Measures a task's inputs to all protected layers, or remembers them by another rule than Eq. 5, 8 and 9."""

from collections.abc import Mapping
from typing import Any

import torch

from .gpm import GPM
from .record import recorder
from .record.batches import each_batch
from .record.inputs import Growth, TaskInputs
from .record.recorder import Forward
from .subspaces.threshold import by_layer


def grow_by(memory: GPM, growth: Growth) -> None:
    """Makes `consolidate` grow each subspace with your function instead of Eq. 5, 8 and 9.

    Args:
        memory: The memory. A copy of it does not have the function.
        growth: Called with the task's inputs to a layer and ε; it changes `inputs.subspace`.
    """
    memory._growth = growth


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
    recorder.record_rows(memory._model, sinks, each_batch(batches), forward or recorder.call, examples)
    return [
        TaskInputs(weight.name, subspace, grams[weight.name].of_group(group), grams[weight.name].count)
        for weight in weights
        for group, subspace in enumerate(weight.subspaces)
    ]
