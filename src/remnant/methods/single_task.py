"""A network of its own for every task (STL): it forgets nothing, and needs T times the parameters."""

from typing import Any

from torch import Tensor
from torch.func import functional_call

from remnant.data import Split
from remnant.models import Network

from .base import Method


class SingleTask(Method):
    """Starts every task from the same initial weights and keeps the weights that it ends with."""

    name = "single-task"
    initial: dict[str, Tensor]
    learnt: dict[str, dict[str, Tensor]]  # task → weights

    def __init__(self, network: Network, **options: Any) -> None:
        super().__init__(network, **options)
        self.keep("initial", self._weights(), per_step=False, counted=False)
        self.keep("learnt", {}, per_step=False)

    def start(self, task: int) -> None:
        super().start(task)
        self.network.load_state_dict(self.initial)

    def finish(self, task: int, train: Split) -> None:
        self.learnt[str(task)] = self._weights()

    logits_recordable = True

    def logits(self, x: Tensor, task: int) -> Tensor:
        if str(task) not in self.learnt:
            return super().logits(x, task)
        logits: Tensor = functional_call(self.network, self.learnt[str(task)], (x, task))
        return logits

    @property
    def capacity(self) -> float:
        return float(len(self.learnt))

    def _weights(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()}
