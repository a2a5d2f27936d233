"""Adaptive plasticity improvement, API (Liang & Li, 2023): layers that can hardly learn get more inputs for a new task."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from math import floor
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant.memory import task_inputs
from remnant.models import Network
from remnant.options import Positive, number

from .gpm import Forward
from .parts.gradients import TINY
from .parts.look_ahead import LookAhead
from .parts.scaled import ScaledLayer


class API(LookAhead):
    """Steps as GPM does, with weights [W | V] for the inputs [h | B·h]. V starts at 0 and is protected like W.

    Before a task, the share ‖projected g‖/‖g‖ of the gradient on `measure_samples` examples is measured in each layer. Where
    it is below `aim`, B gets ⌊`widen`·(aim − share) + ½⌋ more rows, at most `room` in all: they start as the strongest
    directions of the task's inputs (of a convolution, of its channels), train with the task, and stay as they are afterwards.
    A task uses the rows of B up to its own, so test examples need their task, even if all tasks share a head. The patterns
    `layers` select the layers that may get rows.

    The paper's code first trains the new head for five epochs. Its memory stores the complement of what fills more than half
    of a layer (DualGPM), as every memory here does.
    """

    name = "api"
    plain_sgd_only = True
    modules: dict[str, Any]
    widths: dict[str, list[int]]  # layer → rows of B that each task uses

    def __init__(
        self,
        network: Network,
        *,
        widen: Annotated[float, number(0, 1000)] = 10.0,
        aim: Annotated[float, number(0, 1)] = 0.5,
        room: Positive = 50,
        layers: Sequence[str] = ("*",),
        measure_samples: Positive = 300,
        **options: Any,
    ) -> None:
        base_size = sum(p.numel() for p in network.parameters())
        found = {name: module for name, module in network.named_modules() if _can_widen(network, name, module)}
        modules = {name: found[name] for name in found if any(fnmatchcase(name, each) for each in layers)}
        sizes = {name: module.weight.shape[1] for name, module in modules.items()}
        for module in modules.values():
            _add_inputs(module, room)
        super().__init__(network, **options)
        self.base_size = base_size  # before it was widened
        self.widen, self.aim, self.room, self.measure_samples = widen, aim, room, measure_samples
        self.modules, self.layers = modules, ScaledLayer.among(network, modules)
        like = network.example
        # Part of the network, so that early stopping restores B too.
        rows = [nn.Parameter(like.new_zeros(room, size)) for size in sizes.values()]
        network.widening = nn.ParameterList(rows)
        self.rows = dict(zip(modules, rows, strict=True))
        self.viewed = 0  # the task that the network computes
        self.keep("widths", {name: [] for name in modules})
        for name, module in modules.items():
            module.register_forward_pre_hook(lambda module, inputs, name=name: (self.widened(name, inputs[0]),))
        self.refresh()

    def widened(self, name: str, x: Tensor) -> Tensor:
        """Returns [x | B·x] with the rows of B that the current task uses, and 0 for the others."""
        width = self.width(name, self.viewed)
        B = F.pad(self.rows[name][:width], (0, 0, 0, self.room - width))
        if isinstance(self.modules[name], nn.Linear):
            return torch.cat([x, x @ B.mT], dim=-1)
        return torch.cat([x, F.conv2d(x, B[:, :, None, None])], dim=1)

    def width(self, name: str, task: int) -> int:
        widths = self.widths[name]
        return widths[min(task, len(widths) - 1)] if widths else 0

    def start(self, task: int) -> None:
        self.viewed = self.task = task
        shares, directions = self.measured(task) if len(self.memory) and self.tasks else ({}, {})
        for name, widths in self.widths.items():
            done = widths[-1] if widths else 0
            wanted = floor(self.widen * (self.aim - shares.get(name, 1.0)) + 0.5)
            count = max(0, min(wanted, self.room - done, self.rows[name].shape[1]))
            if count:
                self.rows[name].data[done : done + count] = directions[name][:count]
            widths.append(done + count)
        super().start(task)

    def refresh(self) -> None:
        self.viewed = self.task
        used = 0
        for name, module in self.modules.items():
            width = self.width(name, self.task)
            used += width * (self.rows[name].shape[1] + module.weight[:, 0].numel())
        self.capacity = 1 + used / self.base_size

    def measured(self, task: int) -> tuple[dict[str, float], dict[str, Tensor]]:
        """Returns what the memory leaves of each layer's first gradient, and the directions of its inputs as rows."""
        x, y = self.random_examples(self.tasks[task].train, self.measure_samples)
        inputs = {each.layer: each.gram for each in task_inputs(self.memory, [x], forward=self.forward(task))}
        self.network.eval()
        whole = super().gradients(self.loss(x, y))
        shares = {}
        for name, layer in self.layers.items():
            g = layer.gradient(whole)
            shares[name] = float(self.subspace(name).remove(g).norm() / g.norm().clamp(min=TINY))
        return shares, {name: self.strongest(name, inputs[name]) for name in self.modules}

    def strongest(self, name: str, gram: Tensor) -> Tensor:
        """Returns the directions of a layer's own inputs (of a convolution, its channels) as rows, the strongest first."""
        B, kernel = self.rows[name], self.modules[name].weight[0, 0].numel()
        size = B.shape[1]
        own = gram[: size * kernel, : size * kernel].view(size, kernel, size, kernel)
        vectors: Tensor = torch.linalg.eigh(own.diagonal(dim1=1, dim2=3).sum(-1))[1]
        return vectors.flip(1).mT.to(B)

    def gradients(self, loss: Tensor) -> dict[Tensor, Tensor]:
        """Holds the rows of B that earlier tasks use."""
        gradients = super().gradients(loss)
        for name, B in self.rows.items():
            done = self.width(name, self.task - 1) if self.task else 0
            gradients[B] = torch.cat([torch.zeros_like(B[:done]), gradients[B][done:]])
        return gradients

    def forward(self, task: int) -> Forward:
        def run(network: nn.Module, x: Tensor) -> object:
            self.viewed = task
            return network(x, task)

        return run

    logits_recordable = True

    def logits(self, x: Tensor, task: int) -> Tensor:
        self.viewed = task
        logits = super().logits(x, task)
        self.viewed = self.task
        return logits

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(int(B.nbytes) for B in self.rows.values())


def _can_widen(network: Network, name: str, module: nn.Module) -> bool:
    plain = isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1)
    return plain and not (network.multi_head and name.startswith("heads."))


def _add_inputs(module: Any, count: int) -> None:
    """Adds inputs with weights of 0 to a linear layer, or channels to a convolution."""
    zeros = module.weight.new_zeros(len(module.weight), count, *module.weight.shape[2:])
    module.weight = nn.Parameter(torch.cat([module.weight.detach(), zeros], dim=1))
    if isinstance(module, nn.Linear):
        module.in_features += count
    else:
        module.in_channels += count
