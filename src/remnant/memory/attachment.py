"""Ties a memory to an optimiser through the optimiser's own step hooks, so that the training loop does not change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .precision import full_precision_is_set

Project = Callable[[set[Tensor]], None]
Restore = Callable[[set[Tensor], bool], None]


class Attachment:
    """Projects the gradient before each step and puts the weights back after it."""

    def __init__(self, optimizer: Optimizer, project: Project, restore: Restore) -> None:
        self.optimizer, self._project, self._restore = optimizer, project, restore
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    @property
    def parameters(self) -> set[Tensor]:
        return {parameter for group in self.optimizer.param_groups for parameter in group["params"]}

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # args[0] is the optimiser; a closure computes gradients inside the step, so it is the closure that must project.
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._project(self.parameters)
            return None

        def projected() -> Any:
            with torch.enable_grad():
                loss = closure()
            self._project(self.parameters)
            return loss

        if len(args) > 1:
            return (args[0], projected, *args[2:]), kwargs
        return args, {**kwargs, "closure": projected}

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._restore(self.parameters, steps_along_gradient(optimizer))


def steps_along_gradient(optimizer: Optimizer) -> bool:
    """Plain SGD: its step is one multiple of the projected gradient, so nothing but rounding is left to put back.

    A weight and its bias are projected together, so their groups must not differ in learning rate. In bf16, fp16 or
    with a reduced float32 precision (TF32) rounding alone would add up to a leak, so those are put back too.
    """
    exact = (torch.float32, torch.float64) if full_precision_is_set() else (torch.float64,)
    return (
        type(optimizer) is torch.optim.SGD
        and len({group["lr"] for group in optimizer.param_groups}) == 1
        and all(
            not group["momentum"]
            and not group["weight_decay"]
            and all(parameter.dtype in exact for parameter in group["params"])
            for group in optimizer.param_groups
        )
    )
