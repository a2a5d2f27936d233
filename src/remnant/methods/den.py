"""Dynamically expandable networks, DEN (Yoon et al., 2018): select units and retrain them, add units, and split units."""

from typing import Annotated, Any

import torch
from torch import Tensor

from remnant.data import Split
from remnant.models import Network
from remnant.options import each_layer, number, whole

from .parts.partial import of_rows
from .parts.widening import Widening, by_layer

# Where the parts of a task begin, as shares of its epochs: the head, selective retraining, expansion, and splitting.
BEGINS = (0.0, 0.1, 0.5, 0.8)
Price = Annotated[float, number(0, 1e6)]
RUNNING = 0.1  # the weight of a step in the running mean of the loss
PerLayer = Annotated[dict[str, int] | None, each_layer(whole(0, 10_000))]


class DEN(Widening):
    """Learns a task in four parts. The first task trains all weights with λ₁·|W|, which makes most of them zero.

    1. Only the head trains, with λ₁·|W|. λ₁ is `sparsity`. Units that can be reached backwards from its weights are selected;
       weights up to `zero` do not count.
    2. The weights between selected units train too, with `pull`/2·‖W − W*‖², where W* are the weights of the last task.
    3. If the loss is above `enough`, each layer gains units, as many as `grow` says (10). Their weights and the head train,
       with λ_g·Σ_units ‖incoming weights‖₂. λ_g is `group_sparsity`. In the end, units without weights to or from them go.
    4. A unit whose incoming weights moved farther than `drift` is split: the old unit gets its old weights back, and later
       tasks see a copy with the new ones in its place. `split` (10) limits how many a layer splits, the farthest first. The
       copies, the new units and the head train to the end.

    The learning rate is multiplied by `lr_decay` after every epoch.
    """

    name = "den"
    has_phases = True
    prices: Tensor  # of |W|, of ‖W − W*‖² and of groups, in this part of the task
    mean_loss: Tensor  # a running mean
    new: Tensor  # units that part 3 has added: 1 or 0
    before: list[Tensor]  # W*

    def __init__(
        self,
        network: Network,
        *,
        sparsity: Price = 1e-5,
        group_sparsity: Price = 1e-3,
        pull: Price = 0.5,
        zero: Price = 1e-3,
        enough: Price = 0.01,
        drift: Price = 0.05,
        grow: PerLayer = None,
        split: PerLayer = None,
        lr_decay: Annotated[float, number(0, 1, above=True)] = 0.95,
        **options: Any,
    ) -> None:
        grow, split, later_tasks = grow or {"*": 10}, split or {"*": 10}, len(network.classes) - 1
        names = [name for name, _ in network.named_modules()]
        room = {name: (by_layer(grow, name) + by_layer(split, name)) * later_tasks for name in names}
        super().__init__(network, room, **options)
        self.sparsity, self.group_sparsity, self.pull, self.lr_decay = sparsity, group_sparsity, pull, lr_decay
        self.zero, self.enough, self.drift, self.grow, self.split = zero, enough, drift, grow, split
        self.keep("prices", network.example.new_tensor([sparsity, 0.0, 0.0]), per_step=False)
        self.keep("mean_loss", network.example.new_zeros(()))
        self.keep("new", torch.zeros_like(self.units.seen[0]), per_step=False)
        self.keep("before", [p.detach().clone() for p in self.units.body.values()], per_step=False)

    def start(self, task: int) -> None:
        super().start(task)
        self.before = [p.detach().clone() for p in self.units.body.values()]
        self.new.zero_()
        self._train_head()
        if task == 0:
            self.free_entries(self.units.seen[task])

    @torch.no_grad()
    def on_epoch_start(self, epoch: int, epochs: int, steps: int) -> None:
        self.lr.mul_(self.lr_decay**epoch)
        parts = (self._train_head, self._retrain, self._expand, self._split_units)
        for begin, part in zip(BEGINS, parts, strict=True):
            if self.task > 0 and epoch == int(begin * epochs):
                part()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The cross-entropy with the terms whose prices are not zero now."""
        loss = super().loss(x, y)
        body, head = self.units.body, self.units.heads[self.task]
        lean = head | body if self.task == 0 else head
        size = torch.stack([p.abs().sum() for p in lean.values()]).sum()
        if self.task == 0:
            return loss + self.prices[0] * size
        moved = torch.stack([(p - old).square().sum() for p, old in zip(body.values(), self.before, strict=True)]).sum()
        new = self.units.of_layers(self.new)
        weights = [p for p in body.values() if p.ndim > 1]
        lengths = [torch.linalg.vector_norm(p.flatten(1), dim=1) @ new[self.units.ends[p].out or 0] for p in weights]
        groups = torch.stack(lengths).sum()
        return loss + self.prices @ torch.stack([size, moved / 2, groups])

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().step(x, y)
        self.mean_loss.lerp_(loss, RUNNING)
        return loss

    def _price(self, size: float = 0.0, moved: float = 0.0, groups: float = 0.0) -> None:
        self.prices.copy_(self.prices.new_tensor([size, moved, groups]))

    def _train_head(self) -> None:
        self._price(size=self.sparsity)
        self.free_entries(self.new)

    def _retrain(self) -> None:
        self._price(moved=self.pull)
        self.free_entries(self.selected())

    def selected(self) -> Tensor:
        """The units that the head's weights reach through weights that are not zero: 1 or 0."""
        seen = self.units.of_layers(self.units.seen[self.task])
        found = [torch.zeros_like(each) for each in seen]
        for layer in reversed(range(len(found))):
            for p in self.units.read_by(layer, self.task):
                used, out = p.abs() > self.zero, self.units.ends[p].out
                if out is not None:
                    used = used & of_rows(found[out] > 0, p)
                found[layer] += self.units.by_input(used, layer).flatten(2).any(2).any(0) * seen[layer]
        return torch.cat(found).clamp(max=1)

    def _expand(self) -> None:
        self._price(groups=self.group_sparsity)
        before = self.units.seen[self.task].clone()
        if float(self.mean_loss) > self.enough:
            for layer, name in enumerate(self.units.layers):
                added = self.units.unused(layer, by_layer(self.grow, name))
                self.units.of_layers(self.new)[layer][added] = 1
                for p in self.units.made_by(layer):  # weights from them start at zero, so answers stay at first
                    p[added] = torch.empty_like(p[added]).uniform_(-self.units.spread[p], self.units.spread[p])
            self.units.seen[self.task] += self.new
        self.free_entries(self.units.seen[self.task], but=before)

    def _split_units(self) -> None:
        self._price()
        old = dict(zip(self.units.body.values(), self.before, strict=True))
        kept = self.units.seen[self.task - 1]
        for layer, name in enumerate(self.units.layers):
            made_by, seen = self.units.made_by(layer), self.units.of_layers(self.units.seen[self.task])[layer]
            moves = [self.units.mask(p, kept) * (p - old[p]) for p in made_by]  # what reads new units does not count
            moved = torch.cat([move.reshape(len(move), -1) for move in moves], 1).norm(dim=1)
            farthest = moved.topk(min(by_layer(self.split, name), len(moved))).indices
            source = farthest[moved[farthest] > self.drift]
            target = self.units.unused(layer, len(source))
            for p in self.units.read_by(layer, self.task):
                inputs = self.units.by_input(p, layer)
                inputs[:, target] = inputs[:, source]
            for p in made_by:
                p[target] = p[source]
                p[source] = old[p][source]
            self.units.copy_norms(layer, source, target)
            seen[source], seen[target] = 0, 1
        self.free_entries(self.units.seen[self.task], but=kept)

    @torch.no_grad()
    def finish(self, task: int, train: Split) -> None:
        """Removes new units that have no weights to or from them."""
        for layer, new in enumerate(self.units.of_layers(self.new)):
            into = [p.abs().flatten(1).amax(1) for p in self.units.made_by(layer) if p.ndim > 1]
            out_of = [
                self.units.by_input(p, layer).abs().flatten(2).amax((0, 2)) for p in self.units.read_by(layer, task)
            ]
            alive = torch.stack(into).amax(0).minimum(torch.stack(out_of).amax(0)) > self.zero
            dead = (new > 0) & ~alive
            self.units.of_layers(self.units.seen[task])[layer][dead] = 0
            for p in self.units.made_by(layer):
                p[dead] = 0
            for p in self.units.read_by(layer, task):
                self.units.by_input(p, layer)[:, dead] = 0
        super().finish(task, train)
