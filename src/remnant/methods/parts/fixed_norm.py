"""Normalisation as the paper has it: "learned for the first task and shared with all the other tasks" (Sec. 6)."""

from __future__ import annotations

from torch import nn

from remnant.memory import is_norm, keep_in_eval_mode
from remnant.models import Network

from ..base import Method


class FixedNorm(Method):
    """For methods that protect weights and know nothing of norms: from the second task on these do not change."""

    def __init__(self, network: Network, *, lr: float) -> None:
        super().__init__(network, lr=lr)
        self.norms = [module for module in network.modules() if is_norm(module)]

    def start(self, task: int) -> None:
        super().start(task)
        if task > 0:
            for norm in self.norms:
                keep_in_eval_mode(norm)

    @property
    def fixed(self) -> set[nn.Parameter]:
        return {p for norm in self.norms for p in norm.parameters()} if self.task > 0 else set()

    @property
    def parameters(self) -> list[nn.Parameter]:
        fixed = self.fixed
        return [p for p in super().parameters if p not in fixed]
