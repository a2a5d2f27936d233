"""A body shared by all tasks, and one head or one head per task."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .wiring import Units


class Network(nn.Module, ABC):
    """A classifier for a stream of tasks.

    Args:
        input_shape: shape of one input, without the batch.
        classes: a number for a single head that all tasks share; a sequence, one number per task, for a head each.

    A single head is a layer like the others, called `head`. Heads per task are `heads.0`, `heads.1`, … so that
    `exclude=["heads.*"]` leaves them free, as the paper does.

    A subclass builds its body, calls `attach_heads` with the number of features the body gives, and says in `features`
    how an input goes through it. Nothing in a forward pass reads a tensor on the host, so it can be captured.
    """

    head: nn.Linear
    heads: nn.ModuleList

    def __init__(self, input_shape: Sequence[int], classes: int | Sequence[int]) -> None:
        super().__init__()
        self.input_shape = tuple(input_shape)
        self.multi_head = not isinstance(classes, int)
        self.classes: tuple[int, ...] = (classes,) if isinstance(classes, int) else tuple(classes)
        if not self.input_shape or min(self.input_shape) < 1:
            raise ValueError(f"input_shape must be one or more positive sizes, not {self.input_shape}.")
        if not self.classes or min(self.classes) < 1:
            raise ValueError(f"classes must be a positive number, or one for each task, not {classes}.")

    def attach_heads(self, features: int, *, bias: bool) -> None:
        """Adds the last layer, or one per task, on `features` inputs."""
        if self.multi_head:
            self.heads = nn.ModuleList(nn.Linear(features, classes, bias=bias) for classes in self.classes)
        else:
            self.head = nn.Linear(features, self.classes[0], bias=bias)

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """The body: inputs (N, *input_shape) to what the heads see (N, features)."""

    def wiring(self) -> list[Units]:
        """Which layer of the body feeds which, in the order they are reached. Only methods that mask units ask."""
        raise ValueError(
            f"{type(self).__name__} does not say which of its layers feeds which, so its units cannot be masked. "
            "Give it a `wiring` method (see remnant.models.wiring)."
        )

    def head_of(self, task: int | None) -> nn.Linear:
        """The head that answers for a task; a single head answers for all."""
        if not self.multi_head:
            return self.head
        if task is None:
            raise ValueError(f"This network has {len(self.heads)} heads: say which task, network(x, task).")
        if not 0 <= task < len(self.heads):
            raise IndexError(f"No head for task {task}: this network has heads for tasks 0 to {len(self.heads) - 1}.")
        head = self.heads[task]
        assert isinstance(head, nn.Linear)
        return head

    def forward(self, x: Tensor, task: int | None = None) -> Tensor:
        """Logits of the task's head. `task` is needed with heads per task and ignored with a single head."""
        if tuple(x.shape[1:]) != self.input_shape:
            raise ValueError(f"Inputs of shape {tuple(x.shape)} for a network built for (N, *{self.input_shape}).")
        logits: Tensor = self.head_of(task)(self.features(x))
        return logits

    @property
    def example(self) -> Tensor:
        """One blank input (no batch dimension), with the network's type and on its device."""
        parameter = next(self.parameters())
        return torch.zeros(self.input_shape, dtype=parameter.dtype, device=parameter.device)
