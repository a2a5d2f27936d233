"""All or nothing: if an operation on a memory fails, or is interrupted, everything is as it was before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .gpm import GPM

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called")


@contextmanager
def all_or_nothing(memory: GPM) -> Iterator[dict[Tensor, Tensor]]:
    """Gives the memory and its model back their state if the block ends by any exception, an interrupt included.

    The block replaces attributes and never changes what they hold, so that references to the old values are enough. It gets
    copies of the protected and frozen parameters, which serve as the anchors of the next task if it succeeds.
    """
    parts = [memory, memory._constraint, memory._buffers, memory._verifier, *memory._protection.weights]
    attributes = [(part, dict(vars(part))) for part in [*parts, *([memory._recall] if memory._recall else [])]]
    modules = [
        (module, dict(vars(module)), {h: list(vars(module)[h]) for h in HOOKS}) for module in memory._model.modules()
    ]
    weights = {parameter: parameter.detach().clone() for parameter in memory._protection.parameters}
    buffers = {buffer: buffer.detach().clone() for buffer in memory._model.buffers()}
    fastpath = torch.backends.mha.get_fastpath_enabled()
    try:
        yield weights
    except BaseException:
        for part, values in attributes:
            vars(part).update(values)
        for module, values, hooks in modules:
            for name in vars(module).keys() - values.keys():
                del vars(module)[name]
            vars(module).update(values)
            for kind, present in hooks.items():
                for key in vars(module)[kind].keys() - set(present):
                    del vars(module)[kind][key]
        with torch.no_grad():
            for tensor, value in {**weights, **buffers}.items():
                tensor.copy_(value)
        torch.backends.mha.set_fastpath_enabled(fastpath)
        raise
