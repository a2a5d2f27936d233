"""The constraint W·M = W₀·M on all protected weights: projects gradients before a step and restores weights after it."""

from collections.abc import Collection

import torch
from torch import Tensor

from .audit.verification import LayerCheck, check_still, check_weight
from .discovery import Protection
from .protected import ProtectedWeight
from .record.recorder import Grams

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
    def project_among(self, gradients: dict[Tensor, Tensor], skip: Collection[ProtectedWeight] = ()) -> None:
        """Projects gradients in a dict, in place."""
        self.stepped.update(gradients)
        if not self.anchors:
            return
        for weight in self._protection.weights:
            if weight.rank and weight not in skip:
                weight.project_among(gradients)
        for parameter in self.frozen_parameters:
            if parameter in gradients:
                gradients[parameter] = torch.zeros_like(parameter)

    @torch.no_grad()
    def restore(self, parameters: set[Tensor] | None = None, along_gradient: bool = False) -> None:
        """Puts these parameters, or all, back to W·M = W₀·M.

        `along_gradient`: the step was a multiple of the projected gradient, so that only rounding must be restored.
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
        weights = [check_weight(weight, self.anchors, grams) for weight in self._protection.weights]
        return weights + [check_still(name, p, self.anchors[p]) for name, p in self._protection.frozen.items()]

    def _follow_devices(self) -> None:
        for parameter, anchor in self.anchors.items():
            if anchor.device != parameter.device:
                self.anchors[parameter] = anchor.to(parameter.device)
