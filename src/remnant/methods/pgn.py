"""Progressive networks, PGN (Rusu et al., 2016): a new column for every task, which reads the columns before it."""

from collections.abc import Sequence
from math import prod, sqrt
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from remnant.memory import keep_in_eval_mode
from remnant.models import Network
from remnant.options import number

from .base import parameters_of
from .parts.growing import Growing, resized


class PGN(Growing):
    """h_t^l = ReLU(W_t·h_t^{l−1} + U_t·ReLU(V_t·[s_j·h_j^{l−1}]_{j<t})) in each layer l of column t, after its first.

    The columns of earlier tasks never change. The first column is the network itself; later ones have the share `width` of
    its units. V_t mixes the units of old columns at each position into as many as column t has, and s_j is one number per
    old column. A head reads the last layer of its column and of all earlier ones, without V and ReLU. Each column has its
    own norms.
    """

    name = "pgn"

    def __init__(
        self, network: Network, *, width: Annotated[float, number(0, 1, above=True)] = 0.2, **options: Any
    ) -> None:
        super().__init__(network, **options)
        wiring = network.wiring()
        widths = {units: max(1, round(width * units.count)) for units in wiring}
        self.body: list[Columns] = []
        for units in wiring:
            for layer, norm, reads in units.made_by:
                inputs = None if reads is None else (reads.count, widths[reads])
                self._replace([layer, *(Column(layer, inputs, widths[units], t) for t in self.later_tasks)], inputs)
                if isinstance(norm, _BatchNorm):
                    norms = [norm, *(resized(norm, widths[units]) for _ in self.later_tasks)]
                    self._replace(norms, (units.count, widths[units]))
        last = wiring[-1]
        self.head_growth = [0]  # parameters of each head, less those it had at first
        for task in self.later_tasks:
            head = network.head_of(task)
            more = head.in_features // last.count * task * widths[last]
            head.weight = new_weights(head.weight, (head.out_features, head.in_features + more))
            head.in_features += more
            self.head_growth.append(head.out_features * more)
        self.refresh()

    @property
    def later_tasks(self) -> range:
        return range(1, len(self.network.classes))

    def _replace(self, columns: Sequence[nn.Module], units: tuple[int, int] | None) -> None:
        self.body.append(Columns(columns, units).to(self.network.example))
        name = next(name for name, module in self.network.named_modules() if module is columns[0])
        self.network.set_submodule(name, self.body[-1])

    def added(self) -> int:
        later = parameters_of(*(each.columns[t] for each in self.body for t in range(1, self.learnt)))
        return sum(p.numel() for p in later) + sum(self.head_growth[: self.learnt])

    def start(self, task: int) -> None:
        super().start(task)
        for norm in (norm for each in self.body for norm in each.columns[:task] if isinstance(norm, _BatchNorm)):
            keep_in_eval_mode(norm)

    @property
    def parameters(self) -> list[nn.Parameter]:
        own = parameters_of(self.network.head_of(self.task), *(each.columns[self.task] for each in self.body))
        return [p for p in self.network.parameters() if p in own and p.requires_grad]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self._use(self.task)
        return super().loss(x, y)

    logits_recordable = True

    def logits(self, x: Tensor, task: int) -> Tensor:
        self._use(task)
        return super().logits(x, task)

    def _use(self, task: int) -> None:
        for each in self.body:
            each.task = task


class Columns(nn.Module):
    """A layer or norm of the network in all its columns, whose units follow one another.

    Args:
        columns: the module of each column. A norm or the first column's layer reads its own column alone.
        units: how many units its input has in the first column and in each later one; None for the network's input.
    """

    task = 0  # the last column to compute, and the only one with gradients

    def __init__(self, columns: Sequence[nn.Module], units: tuple[int, int] | None) -> None:
        super().__init__()
        self.columns, self.units = nn.ModuleList(columns), units

    def forward(self, x: Tensor) -> Tensor:
        if self.units is None:
            ends = [0] * (self.task + 1)
        else:
            first, later = self.units
            positions = x.shape[1] // (first + self.task * later)  # adjacent values of a unit, if x was flattened
            ends = [positions * (first + t * later) for t in range(self.task + 1)]
        with torch.no_grad():
            old = [self._output(x, t, ends) for t in range(self.task)]
        return torch.cat([*old, self._output(x, self.task, ends)], 1)

    def _output(self, x: Tensor, t: int, ends: list[int]) -> Tensor:
        start = ends[t - 1] if t else 0
        own = x[:, start : ends[t]] if self.units else x
        reads_old = isinstance(self.columns[t], Column)
        return self.columns[t](own, x[:, :start].detach()) if reads_old else self.columns[t](own)


class Column(nn.Module):
    """A layer of a later column: W and U side by side, V and s. `units` is as in `Columns`."""

    def __init__(self, layer: nn.Linear | nn.Conv2d, units: tuple[int, int] | None, width: int, task: int) -> None:
        super().__init__()
        self.geometry = [layer]  # in a list, because it is a part of the first column and not of this one
        self.units, fan = units, layer.weight.shape[1]
        if units is not None:
            first, later = units
            fan = 2 * later * (fan // first)
            self.mix = new_weights(layer.weight, (later, first + (task - 1) * later))  # V
            self.scale = nn.Parameter(layer.weight.new_ones(task))  # s
        self.weight = new_weights(layer.weight, (width, fan, *layer.weight.shape[2:]))
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.new_zeros(width))

    def forward(self, own: Tensor, old: Tensor) -> Tensor:
        if self.units is not None:
            first, later = self.units
            scale = torch.cat([self.scale[:1].expand(first), self.scale[1:].repeat_interleave(later)])
            mixed = F.relu((self.mix * scale) @ old.reshape(len(old), len(scale), -1))
            own = torch.cat([own, mixed.reshape(len(own), -1, *own.shape[2:])], 1)
        if isinstance(layer := self.geometry[0], nn.Linear):
            return F.linear(own, self.weight, self.bias)
        return layer._conv_forward(own, self.weight, self.bias)


@torch.no_grad()
def new_weights(like: Tensor, shape: Sequence[int]) -> nn.Parameter:
    """Returns initial weights for another shape, from the initial weights `like` of a layer.

    Common initial weights have zero mean and a variance that is inversely proportional to the fan-in.
    """
    spread = sqrt(3 * like.square().mean().item() * prod(like.shape[1:]) / prod(shape[1:]))
    return nn.Parameter(like.new_empty(shape).uniform_(-spread, spread))
