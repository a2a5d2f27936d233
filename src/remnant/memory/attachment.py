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
Check = Callable[[Optimizer], None]


class Attachment:
    """Projects the gradient before each step and puts the weights back after it.

    `check` refuses an optimiser that trains what nothing protects. It is asked before a step takes such a parameter along
    for the first time: one of a new group, or one that was frozen until now.
    """

    def __init__(self, optimizer: Optimizer, project: Project, restore: Restore, check: Check) -> None:
        self.optimizer, self._project, self._restore, self._check = optimizer, project, restore, check
        self.look()
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    @property
    def parameters(self) -> set[Tensor]:
        return {parameter for group in self.optimizer.param_groups for parameter in group["params"]}

    def look(self) -> None:
        """Checks what the optimiser trains now, and notes what it does not train yet."""
        self._check(self.optimizer)
        self._groups = len(self.optimizer.param_groups)
        self._asleep = [parameter for parameter in self.parameters if not parameter.requires_grad]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(optimizer.param_groups) != self._groups or any(p.requires_grad for p in self._asleep):
            self.look()
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
