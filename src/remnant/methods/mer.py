"""Meta-experience replay (Riemer et al., 2019): replay in small steps, of which only a fraction is kept (Reptile)."""

from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from remnant.models import Network
from remnant.options import Positive, number

from .parts.replay import Replay
from .parts.reservoir import Reservoir

Rate = Annotated[float, number(0, 1, above=True)]


class MER(Replay):
    """Learns `batches` mixed batches per arriving batch, one SGD step after another, and keeps a fraction of the way.

    A mixed batch holds the arriving examples and `memory_batch` examples from a reservoir, in random order. From θ₀, each
    step follows the gradient of `at_once` of them, so that θ reaches θ_k; then θ ← θ₀ + β(θ_k − θ₀). After the last mixed
    batch, γ does the same for the whole way through all of them. To first order, this favours weights at which the gradients
    of different examples agree.

    The paper takes one example at a time, both as they arrive and in a step. Its s is `batches`, its k is the size of a mixed
    batch. Steps cannot run in parallel, so larger batches (`training.batch`, `at_once`) save time in proportion. The arriving
    batch enters the reservoir before the first draw, which is therefore never empty.
    """

    name = "mer"
    memory: Reservoir

    def __init__(
        self,
        network: Network,
        *,
        memory: Positive = 1000,
        memory_batch: Positive = 30,
        batches: Positive = 1,
        at_once: Positive = 1,
        beta: Rate = 0.3,
        gamma: Rate = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(network, **options)
        if at_once == 1 and any(isinstance(module, _BatchNorm) for module in network.modules()):
            raise ValueError("Batch normalisation has no statistics for one example: set at_once to 2 or more.")
        self.memory_batch, self.batches, self.at_once = memory_batch, batches, at_once
        self.beta, self.gamma = beta, gamma
        self.keep("memory", Reservoir(memory, network.example))

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        labels = self.mixed.labels(y, self.task)
        self.memory.offer(x, labels)
        parameters, losses = self.parameters, []
        first = copies(parameters)
        for _ in range(self.batches):
            start = copies(parameters)
            losses += self._sequential_steps(x, labels)
            go_back(parameters, start, self.beta)
        go_back(parameters, first, self.gamma)
        return torch.stack(losses).mean()

    def _sequential_steps(self, x: Tensor, labels: Tensor) -> list[Tensor]:
        """Takes SGD steps through one mixed batch and returns their losses."""
        remembered, their_labels = self.memory.draw(self.memory_batch)
        x, labels = torch.cat([x, remembered]), torch.cat([labels, their_labels])
        losses = []
        for part in torch.rand(len(labels), device=self.device).argsort().split(self.at_once):
            if len(part) < min(self.at_once, 2):
                break  # batch normalisation cannot use a rest of one example
            losses.append(self.mixed_loss(x[part], labels[part]))
            self.apply_gradients(self.gradients(losses[-1]))
        return [loss.detach() for loss in losses]


def copies(parameters: list[nn.Parameter]) -> list[Tensor]:
    """Clones all parameters with one kernel."""
    return list(torch._foreach_mul([p.detach() for p in parameters], 1.0))


def go_back(parameters: list[nn.Parameter], start: list[Tensor], kept: float) -> None:
    """θ ← θ₀ + kept·(θ − θ₀)."""
    if kept < 1:
        torch._foreach_lerp_([p.detach() for p in parameters], start, 1 - kept)
