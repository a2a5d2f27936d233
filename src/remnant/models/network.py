"""Networks with a body that all tasks share and one head, or a head per task; the MLP; and how to build them by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant.options import OptionError, Positive, checked
from remnant.registry import Registry


class Network(nn.Module, ABC):
    """A classifier for a stream of tasks; the base class of every network.

    A network's constructor takes `input_shape` and `classes` positionally and its options keyword-only, with annotations
    (`width: Annotated[int, whole(1, 100)] = 64`). It calls `super().__init__(input_shape, classes)`, builds the body,
    and calls `attach_heads` with the number of features. `features` computes the body. Nothing in it may read a tensor
    on the host (`.item()`, `if tensor`), because steps are captured into CUDA graphs. HAT also needs `wiring`.

    A single head is an ordinary layer called `head`. The heads of several tasks are called `heads.0`, `heads.1`, …, so
    that `exclude=["heads.*"]` leaves them out of the memory, as the paper does.

    Args:
        input_shape: The shape of one input, without the batch.
        classes: A number for one head that all tasks share, or one number per task for a head each.

    Example:
        >>> class Linear(Network):
        ...     def __init__(self, input_shape, classes, *, bias: bool = False):
        ...         super().__init__(input_shape, classes)
        ...         self.attach_heads(input_shape[0], bias=bias)
        ...     def features(self, x):
        ...         return x
        >>> Linear((8,), [2, 3])(torch.zeros(5, 8), task=1).shape
        torch.Size([5, 3])
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
        """Computes the body: maps inputs (N, *input_shape) to the features (N, features) that the heads read."""

    def wiring(self) -> list[Units]:
        """Says which layer of the body reads which, in the order of computation. Only methods that mask units need it."""
        raise ValueError(
            f"{type(self).__name__} does not say which of its layers reads which, so its units cannot be masked. "
            "Give it a `wiring` method (see remnant.models.Units)."
        )

    def head_of(self, task: int | None) -> nn.Linear:
        """Returns the head of a task. A single head serves all tasks."""
        if not self.multi_head:
            return self.head
        if task is None and len(self.heads) == 1:
            task = 0
        if task is None:
            raise ValueError(f"This network has {len(self.heads)} heads: name the task, network(x, task).")
        if not 0 <= task < len(self.heads):
            raise IndexError(f"No head for task {task}: this network has heads for tasks 0 to {len(self.heads) - 1}.")
        head = self.heads[task]
        assert isinstance(head, nn.Linear)
        return head

    def forward(self, x: Tensor, task: int | None = None) -> Tensor:
        """Returns the logits of the task's head. A network with a single head ignores `task`."""
        if tuple(x.shape[1:]) != self.input_shape:
            raise ValueError(f"Inputs of shape {tuple(x.shape)} for a network built for (N, *{self.input_shape}).")
        return self.head_of(task)(self.features(x))

    @property
    def example(self) -> Tensor:
        """One input of zeros, without a batch dimension, with the network's dtype and on its device."""
        parameter = next(self.parameters())
        return torch.zeros(self.input_shape, dtype=parameter.dtype, device=parameter.device)


class Maker(NamedTuple):
    """A layer that computes units, the norm after it (or None), and the units it reads (None for the network's input)."""

    layer: nn.Linear | nn.Conv2d
    norm: nn.Module | None
    reads: Units | None


@dataclass(frozen=True, eq=False)
class Units:
    """Outputs that later layers read together: those of one layer, or the sum of several layers' outputs.

    The outputs of a sum are units of their own. Every term of the sum must consist of units, also a plain shortcut.
    """

    at: nn.Module  # the module whose output they are, with one unit per channel or feature
    made_by: tuple[Maker, ...]  # the layers whose weights compute them

    @property
    def count(self) -> int:
        return int(self.made_by[0].layer.weight.shape[0])


def linear_chain(*layers: tuple[nn.Linear | nn.Conv2d, nn.Module | None, nn.Module]) -> list[Units]:
    """Returns the wiring of layers that read one another in turn: each with its norm or None, and the module of its units."""
    units: list[Units] = []
    for layer, norm, at in layers:
        units.append(Units(at, (Maker(layer, norm, units[-1] if units else None),)))
    return units


class MLP(Network):
    """Fully connected layers of `hidden` units with ReLU; the one for permuted MNIST has twice 100 units (Sec. 6)."""

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int | Sequence[int],
        *,
        hidden: Sequence[Positive] = (100, 100),
        bias: bool = False,
    ) -> None:
        super().__init__(input_shape, classes)
        widths = (prod(self.input_shape), *hidden)
        self.hidden = nn.ModuleList(nn.Linear(inputs, outputs, bias=bias) for inputs, outputs in pairwise(widths))
        self.attach_heads(widths[-1], bias=bias)

    def features(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.hidden:
            x = F.relu(layer(x))
        return x

    def wiring(self) -> list[Units]:
        return linear_chain(*((layer, None, layer) for layer in self.hidden if isinstance(layer, nn.Linear)))


MODELS: Registry[type[Network]] = Registry("network", "remnant.networks")


def build(
    name: str, *, input_shape: Sequence[int], classes: int | Sequence[int], seed: int | None = None, **options: Any
) -> Network:
    """Builds a network by its name in `MODELS`, an entry point of an installed package, or `path/to/file.py:Name`.

    With a seed, torch's random state stays as it is. The options are the network's own, such as `width` and `norm`.

    >>> network = build("mlp", input_shape=(1, 28, 28), classes=10, seed=0, hidden=[100, 100])
    """
    make = MODELS[name]
    options = checked(make, options, name)
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed the GPU's generator
        network = make(input_shape, classes, **options)
    if not isinstance(network, Network):
        raise OptionError(f"{name} made a {type(network).__name__}, which is not a subclass of remnant.models.Network.")
    if not hasattr(network, "heads" if network.multi_head else "head"):
        raise OptionError(f"{name} has no head. Call self.attach_heads(features, bias=…) at the end of its __init__.")
    return network
