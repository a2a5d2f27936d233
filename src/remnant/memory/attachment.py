"""Attaches a memory to an optimizer through the optimizer's own step hooks, so that the training loop does not change."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .constraint import Constraint
from .precision import full_precision_is_set


class Attachment:
    """Projects the gradients before each step of an optimizer and restores the weights after it.

    `check` refuses an optimizer that trains unprotected parameters. It runs again before the first step that could train
    a new one: one of a new group, or one that was frozen before.
    """

    def __init__(self, optimizer: Optimizer, constraint: Constraint, check: Callable[[Optimizer], None]) -> None:
        self.optimizer, self._constraint, self._check = optimizer, constraint, check
        self.check()
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    @property
    def parameters(self) -> set[Tensor]:
        return {parameter for group in self.optimizer.param_groups for parameter in group["params"]}

    def check(self) -> None:
        self._check(self.optimizer)
        self._groups = len(self.optimizer.param_groups)
        self._untrained = [parameter for parameter in self.parameters if not parameter.requires_grad]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(optimizer.param_groups) != self._groups or any(p.requires_grad for p in self._untrained):
            self.check()
        # args[0] is the optimizer. A closure computes gradients inside the step, so they must be projected in there.
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._constraint.project(self.parameters)
            return None

        def projected() -> Any:
            with torch.enable_grad():
                loss = closure()
            self._constraint.project(self.parameters)
            return loss

        if len(args) > 1:
            return (args[0], projected, *args[2:]), kwargs
        return args, {**kwargs, "closure": projected}

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._constraint.restore(self.parameters, steps_along_gradient(optimizer))


def steps_along_gradient(optimizer: Optimizer) -> bool:
    """Whether a step is one multiple of the projected gradient (plain SGD), so that only rounding must be restored.

    All groups need one learning rate, because a weight and its bias are projected together. In bf16, fp16 and TF32,
    rounding alone would add up to a leak, so these types are restored after every step.
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
