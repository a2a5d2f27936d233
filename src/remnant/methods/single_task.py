"""A network of its own for every task (STL): nothing to forget, T times the parameters."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.func import functional_call

from remnant.data import Split
from remnant.models import Network

from .base import Method


class SingleTask(Method):
    """Every task starts from the same initial weights and keeps what it ends with."""

    name = "single-task"
    logits_recordable = True

    def __init__(self, network: Network, *, lr: float) -> None:
        super().__init__(network, lr=lr)
        self.initial = _copy(network.state_dict())
        self.learnt: dict[str, dict[str, Tensor]] = {}

    def start(self, task: int) -> None:
        super().start(task)
        self.network.load_state_dict(self.initial)

    def remaining(self) -> dict[str, Tensor]:
        return {}

    def finish(self, task: int, train: Split) -> None:
        self.learnt[str(task)] = _copy(self.network.state_dict())

    def logits(self, x: Tensor, task: int) -> Tensor:
        if str(task) not in self.learnt:
            return super().logits(x, task)
        logits: Tensor = functional_call(self.network, self.learnt[str(task)], (x, task))
        return logits

    @property
    def capacity(self) -> float:
        return float(len(self.learnt))

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for state in self.learnt.values() for tensor in state.values())

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "initial": self.initial, "learnt": self.learnt}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.initial = {name: tensor.to(self.device) for name, tensor in state["initial"].items()}
        self.learnt = {
            task: {name: tensor.to(self.device) for name, tensor in weights.items()}
            for task, weights in state["learnt"].items()
        }


def _copy(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in state.items()}
