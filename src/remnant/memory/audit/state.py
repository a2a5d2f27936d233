"""Buffers are part of what a model computes, and no optimiser moves them: running means, averages, a spectral norm's vectors.

What cannot be projected is held: the module stays in eval mode, where it leaves its buffers alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import Tensor, nn

from ..discovery import Protection, Selection, clean
from ..layers import norm as norms
from ..layers.registry import has_rule, is_norm
from .verification import LayerCheck, check_still


class Buffers:
    """The buffers that old outputs depend on, as the task found them.

    All of the norms', and of other modules those that a forward pass reads: floats, saved with the model (the others are
    caches), selected by the user's patterns.
    """

    def __init__(self, model: nn.Module, plan: Protection, selection: Selection, unsupported: str) -> None:
        self._model, self._selection, self._unsupported = model, selection, unsupported
        self._norms = plan.norms
        self._first = {name: tensor.detach().clone() for name, tensor in self.others().items()}
        self.values: dict[str, Tensor] = {}  # by name, at the task's start
        self.held: list[str] = []  # modules beside the norms that stay in eval mode

    def of_norms(self) -> dict[str, Tensor]:
        return {
            f"{name}.{buffer}": tensor
            for name, module in self._norms.items()
            for buffer, tensor in module.named_buffers(recurse=False)
            if tensor.is_floating_point()
        }

    def others(self) -> dict[str, Tensor]:
        """By name. With unsupported="free" none: whoever lets parameters go that no rule covers, lets these go too."""
        if self._unsupported == "free":
            return {}
        found = {
            ".".join(filter(None, (clean(raw), buffer))): tensor
            for raw, module in self._model.named_modules()
            if not is_norm(module) or has_rule(module)
            for buffer, tensor in module.named_buffers(recurse=False)
            if tensor.is_floating_point() and buffer not in getattr(module, "_non_persistent_buffers_set", ())
        }
        return {name: tensor for name, tensor in found.items() if name in self._selection}

    def moving(self, read: Collection[str]) -> list[str]:
        """Those read for the first time that have changed since the memory was made: a later task will change them too."""
        now = self.others()
        return [
            name
            for name, first in self._first.items()
            if name in read and name in now and not torch.equal(now[name], first.to(now[name]))
        ]

    def begin_task(self, read: Collection[str], moving: Iterable[str]) -> None:
        """What is read now is what the next task must preserve; with unsupported="freeze" it does."""
        if self._unsupported == "freeze":
            self.held = sorted({*self.held, *(name.rpartition(".")[0] for name in moving)})
        known = {name: tensor for name, tensor in self.others().items() if name in read or name in self.values}
        self.values = {name: tensor.detach().clone() for name, tensor in {**self.of_norms(), **known}.items()}
        self._first = {name: tensor for name, tensor in self._first.items() if name not in self.values}
        self.hold()

    def hold(self) -> None:
        for module in self._modules():
            norms.keep_in_eval_mode(module)

    def release(self) -> None:
        for module in self._modules():
            norms.allow_train_mode(module, self._model.training)

    def _modules(self) -> list[nn.Module]:
        others = {clean(name): module for name, module in self._model.named_modules()}
        return [*self._norms.values(), *(others[name] for name in self.held if name in others)]

    def checks(self) -> list[LayerCheck]:
        now = {**self.of_norms(), **self.others()}
        return [check_still(name, now[name], then, buffer=True) for name, then in self.values.items() if name in now]
