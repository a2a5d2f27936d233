"""What methods that grow a network share: how much it has grown, which parameters can grow, and new weights."""

from abc import abstractmethod
from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

import torch
from torch import Tensor, nn

from remnant.data import Split
from remnant.models import Network

from ..base import Method


class Growing(Method):
    """A method whose network grows from task to task. `capacity` and `nbytes` follow from `added`.

    A constructor first calls this one, and then grows the network to its largest size, so that shapes stay the same: captured
    steps and checkpoints need no others. What a task does not use yet takes no part in its computation.
    """

    needs_task = True
    learnt: int  # tasks

    def __init__(self, network: Network, **options: Any) -> None:
        super().__init__(network, **options)
        self.base_size = sum(p.numel() for p in network.parameters())
        self.keep("learnt", 0)

    @abstractmethod
    def added(self) -> int:
        """How many numbers the tasks learnt so far need, more than the network had at first."""

    def finish(self, task: int, train: Split) -> None:
        self.learnt = task + 1
        self.refresh()

    def refresh(self) -> None:
        self.added_size = self.added()
        self.capacity = 1 + self.added_size / self.base_size

    @property
    def nbytes(self) -> int:
        return self.added_size * self.network.example.itemsize


def wired_parameters(network: Network) -> dict[str, nn.Parameter]:
    """The weights and biases of the layers in `Network.wiring`, by name: all but heads and norms."""
    makers = [maker for units in network.wiring() for maker in units.made_by]
    wired = {p for maker in makers for p in maker.layer.parameters()}
    return {name: p for name, p in network.named_parameters() if p in wired and p.requires_grad}


@torch.no_grad()
def new_weights(like: Tensor, shape: Sequence[int]) -> nn.Parameter:
    """Weights as a layer would start with that has weights `like`, except that its shape and so its fan-in differ.

    Common initial weights have zero mean and a variance that is inverse to the fan-in.
    """
    spread = sqrt(3 * like.square().mean().item() * prod(like.shape[1:]) / prod(shape[1:]))
    return nn.Parameter(like.new_empty(shape).uniform_(-spread, spread))


def replace_module(network: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Puts a module in the place of another one."""
    network.set_submodule(next(name for name, module in network.named_modules() if module is old), new)
