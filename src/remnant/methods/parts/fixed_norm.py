"""Normalisation as in the paper: "learned for the first task and shared with all the other tasks" (Sec. 6)."""

from typing import Any

from torch import nn

from remnant.memory import is_norm, keep_in_eval_mode
from remnant.models import Network

from ..base import Method


class FixedNorm(Method):
    """Base of methods that protect weights but not norms: from the second task on, norms stay as they are."""

    def __init__(self, network: Network, **options: Any) -> None:
        super().__init__(network, **options)
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

    def shared_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that all tasks move, by name: the body without its norms, and a head that all tasks use."""
        own = [*self.norms, *(self.network.heads if self.network.multi_head else [])]
        excluded = {p for module in own for p in module.parameters()}
        return {n: p for n, p in self.network.named_parameters() if p not in excluded and p.requires_grad}
