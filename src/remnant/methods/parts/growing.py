"""The base of methods that grow a network: it counts how much they have grown."""

from abc import abstractmethod
from typing import Any

from torch.nn.modules.batchnorm import _BatchNorm

from remnant.data import Split
from remnant.models import Network

from ..base import Method


class Growing(Method):
    """A method whose network grows from task to task. `capacity` and `nbytes` follow from `added`.

    A subclass's constructor calls this one, and then grows the network to its largest size, so that shapes never change, which
    captured steps and checkpoints need. What a task does not use yet takes no part in its computation.
    """

    needs_task = True
    learnt: int  # tasks

    def __init__(self, network: Network, **options: Any) -> None:
        super().__init__(network, **options)
        self.keep("learnt", 0)

    @abstractmethod
    def added(self) -> int:
        """Returns how many numbers the tasks learnt so far have added to the first network."""

    def finish(self, task: int, train: Split) -> None:
        self.learnt = task + 1
        self.refresh()

    def refresh(self) -> None:
        self.added_size = self.added()
        self.capacity = 1 + self.added_size / self.base_size

    @property
    def nbytes(self) -> int:
        return self.added_size * self.network.example.itemsize


def resized(norm: _BatchNorm, units: int) -> _BatchNorm:
    """Returns a new norm with the options of `norm`, for another number of units."""
    return type(norm)(units, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
