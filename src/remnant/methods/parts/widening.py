"""A network with room for more units, and which of its units each task sees."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from math import sqrt
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from remnant.data import Split
from remnant.models import Network
from remnant.options import number

from ..base import parameters_of
from .growing import Growing, resized
from .partial import PartlyFrozen, of_columns, of_rows

Decay = Annotated[float, number(0, 10)]


class Widening(Growing, PartlyFrozen):
    """A method that adds units to the layers. A task sees its own units and those that the task before it saw.

    A subclass decides which units the task sees (`self.units.seen`), and which entries of the body are `free` to change. The
    loss has a term decay/2·‖weights‖². Norms belong to the first task.
    """

    freezes_norms = True
    units: "Widened"
    free: list[Tensor]  # 1 or 0 for every entry of the body

    def __init__(self, network: Network, room: Mapping[str, int], *, decay: Decay = 1e-4, **options: Any) -> None:
        super().__init__(network, **options)
        self.decay = decay
        self.units = network.units = Widened(network, room)  # part of the network, so that early stopping restores it
        self.first_size = self.units.size(0)
        self.keep("free", [torch.ones_like(p) for p in self.units.body.values()], per_step=False)
        self.moving = dict(zip(self.units.body.values(), self.free, strict=True))
        self.refresh()

    def added(self) -> int:
        return self.units.size(self.learnt) - self.first_size

    def start(self, task: int) -> None:
        self.units.seen[task:] = self.units.seen[max(0, task - 1)]
        super().start(task)

    def free_entries(self, units: Tensor, *, but: Tensor | None = None) -> None:
        """Frees the weights that connect these units, except for those that connect the units `but`."""
        for free, p in zip(self.free, self.units.body.values(), strict=True):
            free.copy_(self.units.mask(p, units))
            if but is not None:
                free *= 1 - self.units.mask(p, but)

    @property
    def parameters(self) -> list[nn.Parameter]:
        norms = parameters_of(*self.norms) if self.task == 0 else ()
        return [*self.units.parameters_for(self.task).values(), *(p for p in self.network.parameters() if p in norms)]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        weights = self.units.weights(self.task)
        length = torch.stack([each.square().sum() for each in weights.values()]).sum()
        return F.cross_entropy(functional_call(self.network, weights, (x, self.task)), y) + self.decay / 2 * length

    def finish(self, task: int, train: Split) -> None:
        if task == 0:
            self.units.reset_norms()
        super().finish(task, train)

    logits_recordable = True

    def logits(self, x: Tensor, task: int) -> Tensor:
        logits: Tensor = functional_call(self.network, self.units.weights(task), (x, task))
        return logits


class Ends(NamedTuple):
    """Which units a parameter's rows compute and its columns read, as numbers of layers; None for classes and pixels."""

    out: int | None
    reads: int | None


class Widened(nn.Module):
    """Widens the layers, norms and heads of a network, and keeps which units each task sees.

    New units come after the old ones, and their weights start at zero. A task computes with `weights(task)`, where the units
    that it does not see have no weights to and from them. So later tasks cannot change its answers through their own units.

    Args:
        network: The network, whose `wiring` says where its units are.
        room: How many units a layer gains, by patterns of layer names.
    """

    seen: Tensor  # tasks × units of all layers, 1 or 0

    def __init__(self, network: Network, room: Mapping[str, int]) -> None:
        super().__init__()
        wiring, names = network.wiring(), {module: name for name, module in network.named_modules()}
        index = {units: layer for layer, units in enumerate(wiring)}
        self.layers = [names[units.made_by[0].layer] for units in wiring]
        self.first_sizes = [units.count for units in wiring]
        self.sizes = [size + by_layer(room, name) for size, name in zip(self.first_sizes, self.layers, strict=True)]
        self.ends: dict[nn.Parameter, Ends] = {}
        self.spread: dict[nn.Parameter, float] = {}  # of the layer's first weights, which are uniform in ±spread
        self.norms: list[tuple[_BatchNorm, int]] = []
        for units in wiring:
            for layer, norm, reads in units.made_by:
                self._widen(layer, Ends(index[units], None if reads is None else index[reads]))
                if isinstance(norm, _BatchNorm):
                    self._widen_norm(norm, index[units])
        for head in network.heads:
            self._widen(head, Ends(None, len(wiring) - 1))  # type: ignore[arg-type]
        first = [torch.arange(size) < old for size, old in zip(self.sizes, self.first_sizes, strict=True)]
        self.register_buffer("seen", torch.cat(first).to(network.example).repeat(len(network.classes), 1))
        named = {name: p for name, p in network.named_parameters() if p in self.ends}
        self.body = {name: p for name, p in named.items() if not name.startswith("heads.")}
        tasks = range(len(network.classes))
        self.heads = [{name: p for name, p in named.items() if name.startswith(f"heads.{task}.")} for task in tasks]

    @torch.no_grad()
    def _widen(self, layer: nn.Linear | nn.Conv2d, ends: Ends) -> None:
        old, bias, (outputs, inputs, *kernel) = layer.weight, layer.bias, layer.weight.shape
        outputs = outputs if ends.out is None else self.sizes[ends.out]
        inputs = inputs if ends.reads is None else inputs // self.first_sizes[ends.reads] * self.sizes[ends.reads]
        wider = old.new_zeros(outputs, inputs, *kernel)
        wider = wider if old.is_contiguous() else wider.to(memory_format=torch.channels_last)
        wider[: old.shape[0], : old.shape[1]] = old
        layer.weight = nn.Parameter(wider)
        self.ends[layer.weight], self.spread[layer.weight] = ends, sqrt(3 * old.square().mean().item())
        if bias is not None:
            layer.bias = nn.Parameter(bias.new_zeros(outputs))
            layer.bias[: len(bias)] = bias
            self.ends[layer.bias], self.spread[layer.bias] = Ends(ends.out, None), 0.0
        for end, size in (("out", outputs), ("in", inputs)):
            setattr(layer, f"{end}_{'features' if isinstance(layer, nn.Linear) else 'channels'}", size)

    @torch.no_grad()
    def _widen_norm(self, norm: _BatchNorm, layer: int) -> None:
        wider = resized(norm, self.sizes[layer]).to(next(iter(self.ends)))
        for name, old in [*norm.named_parameters(), *norm.named_buffers()]:
            if old.ndim:
                new = getattr(wider, name)
                new[: len(old)] = old
                setattr(norm, name, new)
        norm.num_features = wider.num_features
        self.norms.append((norm, layer))

    def of_layers(self, units: Tensor) -> list[Tensor]:
        """The part of each layer in a vector of all units."""
        return list(units.split(self.sizes))

    def mask(self, p: nn.Parameter, units: Tensor) -> Tensor:
        """The entries of a parameter that connect these units (1 or 0 for each), in a shape that broadcasts to it."""
        parts, ends, mask = self.of_layers(units), self.ends[p], units.new_ones(())
        if ends.out is not None:
            mask = of_rows(parts[ends.out], p)
        if ends.reads is not None:
            mask = mask * of_columns(parts[ends.reads], p)
        return mask

    def made_by(self, layer: int) -> list[nn.Parameter]:
        """The weights and biases that compute the units of a layer, which are their rows."""
        return [p for p in self.body.values() if self.ends[p].out == layer]

    def read_by(self, layer: int, task: int) -> list[nn.Parameter]:
        """The weights of the body and of the task's head that read the units of a layer."""
        return [p for p in self.parameters_for(task).values() if self.ends[p].reads == layer]

    def by_input(self, weight: Tensor, layer: int) -> Tensor:
        """A view of weights that read the units of a layer: rows × units × positions and kernel."""
        return weight.view(len(weight), self.sizes[layer], -1, *weight.shape[2:])

    def unused(self, layer: int, count: int) -> Tensor:
        """The next units of a layer that no task has seen."""
        used = self.of_layers(self.seen.amax(0))[layer].nonzero().amax() + 1
        return used + torch.arange(count, device=used.device)

    def parameters_for(self, task: int) -> dict[str, nn.Parameter]:
        """The weights and biases of the body and of the task's head, by name."""
        return self.body | self.heads[task]

    def weights(self, task: int) -> dict[str, Tensor]:
        """The same, without the units that the task does not see."""
        return {name: p * self.mask(p, self.seen[task]) for name, p in self.parameters_for(task).items()}

    def size(self, tasks: int) -> int:
        """How many weights and biases the first tasks see in the body, and each task sees in its head."""
        seen = [(p, self.seen[: max(1, tasks)].amax(0)) for p in self.body.values()]
        seen += [(p, self.seen[task]) for task, head in enumerate(self.heads) for p in head.values()]
        return sum(int(self.mask(p, units).expand_as(p).sum()) for p, units in seen)

    @torch.no_grad()
    def copy_norms(self, layer: int, source: Tensor, target: Tensor) -> None:
        """Gives units of a layer the norms of others."""
        for norm in (norm for norm, units in self.norms if units == layer):
            for tensor in (each for each in [*norm.parameters(), *norm.buffers()] if each.ndim):
                tensor[target] = tensor[source]

    def reset_norms(self) -> None:
        """Forgets the statistics of units that no task has seen: they were always zero."""
        unseen = self.of_layers(self.seen.amax(0) == 0)
        for norm, layer in self.norms:
            if norm.running_mean is not None and norm.running_var is not None:
                norm.running_mean[unseen[layer]] = 0
                norm.running_var[unseen[layer]] = 1


def by_layer(table: Mapping[str, int], layer: str) -> int:
    """The entry of the first pattern that matches a layer's name; 0 if none does."""
    return next((value for pattern, value in table.items() if fnmatchcase(layer, pattern)), 0)
