"""Keeps W·M = W₀·M: projects gradients before a step and restores weights after it, through an optimizer's own hooks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .discovery import Protection
from .precision import full_precision_is_set
from .record.recorder import Grams
from .report import LayerCheck, check_still

ROUNDING_STEPS = 8  # the rounding of that many plain SGD steps adds up to less than one unit in the last place


class Constraint:
    """Holds from the second task on. W₀ are the weights, and the frozen parameters, at the start of the task."""

    def __init__(self, protection: Protection) -> None:
        self._protection = protection
        self.anchors: dict[Tensor, Tensor] = {}  # parameter → W₀; empty in the first task
        self.stepped: set[Tensor] = set()  # protected parameters that got a gradient in this task
        self.steps = 0  # of this task

    def begin_task(self) -> None:
        self.anchors = {p: p.detach().clone() for p in self._protection.parameters}
        self.stepped.clear()
        self.steps = 0

    @property
    def frozen_parameters(self) -> list[Tensor]:
        return list(self._protection.frozen.values()) if self.anchors else []

    @torch.no_grad()
    def project(self, parameters: set[Tensor] | None = None) -> None:
        """Projects the `.grad` of these parameters, or of all (Eq. 6–7)."""
        for weight in self._protection.weights:
            if parameters is None or not parameters.isdisjoint(weight.parameters):
                self.stepped.update(p for p in weight.parameters if p.grad is not None)
                if self.anchors and weight.rank:
                    weight.project_gradient()
        frozen = [p.grad for p in self.frozen_parameters if p.grad is not None]
        if frozen:
            torch._foreach_zero_(frozen)

    @torch.no_grad()
    def restore(self, parameters: set[Tensor] | None = None, along_gradient: bool = False) -> None:
        """Puts the weights among these parameters, or all, back to W·M = W₀·M.

        After a step along the projected gradient only rounding is left, which is removed every few steps.
        """
        if not self.anchors:
            return
        self.steps += 1
        along_gradient = along_gradient and self.steps % ROUNDING_STEPS != 0
        self._follow_devices()
        for weight in self._protection.weights:
            if not weight.rank or (parameters is not None and parameters.isdisjoint(weight.parameters)):
                continue
            if not (along_gradient and parameters and weight.moved_along_gradient(parameters)):
                weight.restore(self.anchors)
        frozen = self.frozen_parameters
        if frozen and not along_gradient:
            torch._foreach_copy_(frozen, [self.anchors[p] for p in frozen])

    @torch.no_grad()
    def checks(self, grams: Grams | None = None) -> list[LayerCheck]:
        """Measures each weight's leak, and with the Grams of an old task its drift."""
        if not self.anchors:
            return []
        self._follow_devices()
        weights = self._protection.weights
        checks = [w.check(self.anchors, None if grams is None else grams[w.name].matrix()) for w in weights]
        return checks + [check_still(name, p, self.anchors[p]) for name, p in self._protection.frozen.items()]

    def _follow_devices(self) -> None:
        for parameter, anchor in self.anchors.items():
            if anchor.device != parameter.device:
                self.anchors[parameter] = anchor.to(parameter.device)


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
    groups = optimizer.param_groups
    return (
        type(optimizer) is torch.optim.SGD
        and len({group["lr"] for group in groups}) == 1
        and not any(group["momentum"] or group["weight_decay"] for group in groups)
        and all(parameter.dtype in exact for group in groups for parameter in group["params"])
    )
