"""Additive parameter decomposition, APD (Yoon et al., 2020): a task's weights are scaled shared ones plus a sparse part."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from remnant.data import Split
from remnant.models import Network
from remnant.options import number, whole

from .base import parameters_of
from .parts.growing import Growing

LLOYD_ROUNDS = 20  # of k-means; so few points settle sooner
Price = Annotated[float, number(0, 1e6)]


@dataclass(frozen=True)
class Decomposed:
    """One tensor of the network in all its parts. The tasks' parts have one row per task."""

    shared: nn.Parameter  # W
    tau: Tensor
    v: Tensor  # one number per output unit
    group: Tensor  # values that a group of tasks shares

    @classmethod
    def of(cls, shared: nn.Parameter, tasks: int) -> Self:
        tau = shared.new_zeros(tasks, *shared.shape)
        v = shared.new_zeros(tasks, len(shared), *(1 for _ in shared.shape[1:]))
        return cls(shared, nn.Parameter(tau), nn.Parameter(v), torch.zeros_like(tau))

    def rows(self, chosen: slice | int) -> Self:
        """Some rows, as parameters that share memory with all rows. Other rows take no part in training."""
        tau, v = (nn.Parameter(p.detach()[chosen]) for p in (self.tau, self.v))
        return replace(self, tau=tau, v=v, group=self.group[chosen])

    def only(self, task: int, smallest: float) -> Self:
        """One row. Entries of τ up to `smallest` are zero."""
        return replace(self, tau=pruned(self.tau[task], smallest), v=self.v[task], group=self.group[task])

    def weights(self) -> Tensor:
        """θ_j = W·σ(v_j) + τ_j, with the group's values as a part of τ_j."""
        return torch.addcmul(self.tau, self.shared, torch.sigmoid(self.v)) + self.group


class APD(Growing):
    """θ_t = W·σ(v_t) + τ_t, where v_t has one number per output unit and τ_t is sparse. Heads belong to their tasks.

    Training minimises, over W and all τ_j and v_j with j ≤ t,

        loss + λ₁·Σ_{j≤t} |τ_j| + λ₂/2·(‖τ_t‖² + ‖v_t‖²) + λ₃/2·Σ_{j<t} ‖θ_j − θ_j*‖²

    and in the first task λ₂/2·‖W‖² too. θ_j* are the weights of task j when task t started, so the old τ_j make up for changes
    of W. λ₁ is `sparsity`, λ₂ `decay`, λ₃ `retention`. τ_t starts at W. Its entries up to λ₁ count as zero at test time and
    when its task is learnt. After every `group_every` tasks, k-means groups the τ_j of each layer; entries that differ by at
    most `group_range` within a group move into one tensor for the group. The learning rate is multiplied by `lr_decay` after
    every epoch. Norms belong to the first task.
    """

    name = "apd"
    has_phases = True
    freezes_norms = True
    before: list[Tensor]  # θ_j* of all j < t, without the values of their groups
    grouped: int  # numbers that groups of tasks share

    def __init__(
        self,
        network: Network,
        *,
        sparsity: Price = 6e-4,
        decay: Price = 1e-4,
        retention: Price = 100.0,
        group_every: Annotated[int, whole(0)] = 5,
        group_range: Price = 0.01,
        lr_decay: Annotated[float, number(0, 1, above=True)] = 0.95,
        **options: Any,
    ) -> None:
        super().__init__(network, **options)
        self.sparsity, self.decay, self.retention, self.lr_decay = sparsity, decay, retention, lr_decay
        self.group_every, self.group_range = group_every, group_range
        tasks = len(network.classes)
        self.decomposed = {name: Decomposed.of(p, tasks) for name, p in wired_parameters(network).items()}
        # They are parts of the network, so that early stopping restores them too.
        network.tau = nn.ParameterList(each.tau for each in self.decomposed.values())
        network.v = nn.ParameterList(each.v for each in self.decomposed.values())
        self.keep("groups", [each.group for each in self.decomposed.values()], per_step=False)
        self.keep("before", [], per_step=False, counted=False)
        self.keep("grouped", 0)
        self._divide(0)
        self.refresh()

    def _divide(self, task: int) -> None:
        """Separates the rows of old tasks from the task's own: a slice in the loss would cost a whole tensor of zeros."""
        self.old = {name: each.rows(slice(task)) for name, each in self.decomposed.items()}
        self.own = {name: each.rows(task) for name, each in self.decomposed.items()}

    @torch.no_grad()
    def start(self, task: int) -> None:
        self._divide(task)
        self.before = [each.weights() - each.group for each in self.old.values()]
        for each in self.own.values():
            each.tau.copy_(each.shared)
        super().start(task)

    def added(self) -> int:
        """The entries of τ and of the groups that are not zero, and v."""
        learnt = [each.rows(slice(self.learnt)) for each in self.decomposed.values()]
        return self.grouped + sum(int(each.tau.count_nonzero()) + each.v.numel() for each in learnt)

    def on_epoch_start(self, epoch: int, epochs: int, steps: int) -> None:
        self.lr.mul_(self.lr_decay**epoch)

    @property
    def parameters(self) -> list[nn.Parameter]:
        others = parameters_of(self.network.head_of(self.task), *(self.norms if self.task == 0 else ()))
        decomposed = [p for each in self.own.values() for p in (each.shared, each.tau, each.v)]
        if self.task > 0:
            decomposed += [p for each in self.old.values() for p in (each.tau, each.v)]
        others_in_order = [p for p in self.network.parameters() if p in others and p.requires_grad]
        return [*decomposed, *others_in_order]  # type: ignore[list-item]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        weights = {name: each.weights() for name, each in self.own.items()}
        loss = F.cross_entropy(functional_call(self.network, weights, (x, self.task)), y)
        for each in self.own.values():
            small = [each.tau, each.v, *([each.shared] if self.task == 0 else ())]
            loss = loss + self.sparsity * each.tau.abs().sum() + self.decay / 2 * sum(p.square().sum() for p in small)
        for each, before in zip(self.old.values() if self.task > 0 else (), self.before, strict=False):
            terms = each.shared, each.tau, each.v, before, self.sparsity, self.retention
            loss = loss + Retained.apply(*terms)  # type: ignore[no-untyped-call]
        return loss

    logits_recordable = True

    def logits(self, x: Tensor, task: int) -> Tensor:
        own = {name: each.only(task, self.sparsity).weights() for name, each in self.decomposed.items()}
        return functional_call(self.network, own, (x, task))

    @torch.no_grad()
    def finish(self, task: int, train: Split) -> None:
        tasks, self.before = task + 1, []
        learnt = [each.rows(slice(tasks)) for each in self.decomposed.values()]
        for each in learnt:
            each.tau.copy_(pruned(each.tau, self.sparsity))
        if self.group_every and tasks % self.group_every == 0:
            groups = 2 * tasks // 5
            self.grouped = sum(regrouped(each.tau, each.group, groups, self.group_range) for each in learnt)
        super().finish(task, train)


class Retained(torch.autograd.Function):
    """λ₁·Σ_j |τ_j| + λ₃/2·Σ_j ‖W·σ(v_j) + τ_j − before_j‖² of the old tasks j, with its gradient by hand."""

    @staticmethod
    def forward(
        ctx: Any, shared: Tensor, tau: Tensor, v: Tensor, before: Tensor, sparsity: float, retention: float
    ) -> Tensor:
        sigma = torch.sigmoid(v)
        moved = torch.addcmul(tau, shared, sigma).sub_(before)
        ctx.save_for_backward(shared, tau, sigma, moved)
        ctx.prices = sparsity, retention
        norm = torch.linalg.vector_norm
        return sparsity * norm(tau, 1) + retention / 2 * norm(moved).square()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        shared, tau, sigma, moved = ctx.saved_tensors
        sparsity, retention = (price * gradients[0] for price in ctx.prices)
        tasks, units, *_ = moved.shape
        by_unit, scale = moved.reshape(tasks, units, -1).movedim(0, 1), sigma.reshape(tasks, units).T
        for_shared = (scale[:, None] @ by_unit).view(shared.shape) * retention
        along = (by_unit @ shared.reshape(units, -1, 1))[:, :, 0] * retention
        for_v = (along * scale * (1 - scale)).T.reshape(sigma.shape)
        for_tau = torch.addcmul(tau.sign() * sparsity, moved, retention)
        return for_shared, for_tau, for_v, None, None, None


def wired_parameters(network: Network) -> dict[str, nn.Parameter]:
    """The weights and biases of the layers in `Network.wiring`, by name: all but heads and norms."""
    makers = [maker for units in network.wiring() for maker in units.made_by]
    wired = {p for maker in makers for p in maker.layer.parameters()}
    return {name: p for name, p in network.named_parameters() if p in wired and p.requires_grad}


def pruned(tau: Tensor, smallest: float) -> Tensor:
    return tau * (tau.abs() > smallest)


def regrouped(tau: Tensor, group: Tensor, groups: int, group_range: float) -> int:
    """Groups the tasks by their τ, and moves entries that are alike within a group from `tau` to `group`.

    Returns the number of nonzero entries that the groups hold.
    """
    tau += group  # dissolves the old groups
    group.zero_()
    count, label = 0, k_means(tau.flatten(1), groups)
    for members in (torch.nonzero(label == each).flatten() for each in range(groups)):
        if len(members) > 1:
            rows = tau[members]
            alike = rows.amax(0) - rows.amin(0) <= group_range
            centre = rows.mean(0) * alike
            group[members] = centre
            tau[members] = rows * ~alike
            count += int(centre.count_nonzero())
    return count


def k_means(points: Tensor, groups: int) -> Tensor:
    """Returns the group of each point. The first centre is the first point; each next one is the farthest from all centres."""
    centres = points[:1]
    while len(centres) < min(groups, len(points)):
        centres = torch.cat([centres, points[torch.cdist(points, centres).amin(1).argmax()][None]])
    label = torch.cdist(points, centres).argmin(1)
    for _ in range(LLOYD_ROUNDS):
        member = F.one_hot(label, len(centres)).T.to(points.dtype)
        size = member.sum(1, keepdim=True)
        centres = torch.where(size > 0, member @ points / size.clamp(min=1), centres)
        label = torch.cdist(points, centres).argmin(1)
    return label
