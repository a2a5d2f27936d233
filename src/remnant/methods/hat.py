"""Hard attention to the task (Serrà et al., 2018): every task learns which units it uses, and later tasks keep them."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from remnant.data import Split
from remnant.models import Network, Units
from remnant.options import number

from .base import parameters_of
from .parts.gradients import TINY, clipped
from .parts.partial import PartlyFrozen, masked, of_columns, of_rows

EMBEDDING_LIMIT = 6.0  # beyond ±6, σ is flat even at s = 1
COSH_LIMIT = 50.0  # s·e is cut off here in the compensation, because cosh would overflow
GRADIENT_LIMIT = 1e4  # gradients are scaled down to this norm
Hardness = Annotated[float, number(1, 1e6)]
Price = Annotated[float, number(0, 1e3)]


class HAT(PartlyFrozen):
    """SGD on loss + c·Σ a(1 − a_<t)/Σ (1 − a_<t), through masks a = σ(s·e) on the units of every layer but the head.

    s rises from 1/s_max to s_max in every epoch, and is s_max at test time. a_<t is the largest mask of the earlier tasks. It
    scales steps: a weight's by 1 − min(a_<t of its output unit, a_<t of its input unit), a bias's by 1 − a_<t of its unit.
    c is the `sparsity`, the price of units that no earlier task has used. Norms belong to the first task. `Network.wiring`
    gives the module at whose output units are masked: their layer or norm, or ReLU, dropout or pooling after it, because
    these let a mask through.
    """

    name = "hat"
    freezes_norms = True
    needs_task = True
    masks: "Masks"
    scale: Tensor  # s
    rise: Tensor  # of s, from one step to the next

    def __init__(self, network: Network, *, s_max: Hardness = 400.0, sparsity: Price = 0.75, **options: Any) -> None:
        super().__init__(network, **options)
        self.s_max, self.sparsity = s_max, sparsity
        self.units = network.wiring()
        self.keep("masks", Masks(self.units, len(network.classes), network.example))
        network.masks = self.masks  # part of the network, so that early stopping restores the embeddings too
        self.keep("scale", self.masks.past.new_tensor(1 / s_max), counted=False)
        self.keep("rise", torch.zeros_like(self.scale), counted=False)
        self.refresh()
        covered = parameters_of(network.heads, self.masks) | self.moving.keys()
        if left := [name for name, p in network.named_parameters() if p not in covered and p.requires_grad]:
            kind = type(network).__name__
            raise ValueError(f"{kind}.wiring leaves out {', '.join(left)}: HAT could not protect them.")

    def refresh(self) -> None:
        """Computes what past masks leave to a task: each parameter's share, and the price of each unit."""
        self.embedding: nn.Parameter = self.masks.embeddings[self.task]
        past = dict(zip(self.units, self.masks.past.split(self.masks.sizes), strict=True))
        fixed = parameters_of(*self.norms) if self.task > 0 else ()
        self.moving = {p: share for p, share in _free_shares(past) if p not in fixed}
        unused = 1 - self.masks.past
        self.price = self.sparsity * unused / unused.sum().clamp(min=TINY)

    def on_epoch_start(self, epoch: int, epochs: int, steps: int) -> None:
        """s = 1/s_max + (s_max − 1/s_max)·b/(B − 1) at step b = 0, …, B − 1."""
        self.scale.fill_(1 / self.s_max)
        self.rise.fill_((self.s_max - 1 / self.s_max) / max(1, steps - 1))

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The body (with norms in the first task only), the task's head and the task's embedding."""
        return [
            *self.moving,
            *(p for p in self.network.head_of(self.task).parameters() if p.requires_grad),
            self.embedding,
        ]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        masks = torch.sigmoid(self.scale * self.embedding)
        with masked(self.units, masks.split(self.masks.sizes)):
            return super().loss(x, y) + masks @ self.price

    def gradients(self, loss: Tensor) -> dict[Tensor, Tensor]:
        """Compensates the embedding's gradient, and limits the joint norm of all."""
        gradients = super().gradients(loss)
        gradients[self.embedding] = gradients[self.embedding] * self.compensation()
        return dict(zip(gradients, clipped(list(gradients.values()), GRADIENT_LIMIT), strict=True))

    def compensation(self) -> Tensor:
        """s_max/s·(cosh(s·e) + 1)/(cosh(e) + 1): scales ∂a/∂e at this s to the slope that σ(e) would have at s_max."""
        e = self.embedding.detach()
        steep = torch.cosh((self.scale * e).clamp(-COSH_LIMIT, COSH_LIMIT)) + 1
        return self.s_max / self.scale * steep / (torch.cosh(e) + 1)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().step(x, y)
        with torch.no_grad():
            self.embedding.clamp_(-EMBEDDING_LIMIT, EMBEDDING_LIMIT)
        self.scale += self.rise
        return loss

    def finish(self, task: int, train: Split) -> None:
        """a_<t+1 = max(a_<t, a), at s_max."""
        self.masks.past.copy_(torch.maximum(self.masks.past, self.masks.hard(task, self.s_max)))

    logits_recordable = True

    def logits(self, x: Tensor, task: int) -> Tensor:
        with masked(self.units, self.masks.hard(task, self.s_max).split(self.masks.sizes)):
            return super().logits(x, task)


class Masks(nn.Module):
    """An embedding e ~ N(0, 1) per unit and task, one vector for all layers, and the largest past mask."""

    past: Tensor

    def __init__(self, units: Sequence[Units], tasks: int, like: Tensor) -> None:
        super().__init__()
        self.sizes = [each.count for each in units]
        self.register_buffer("past", like.new_zeros(sum(self.sizes)))
        self.embeddings = nn.ParameterList(torch.randn_like(self.past) for _ in range(tasks))

    def hard(self, task: int, s_max: float) -> Tensor:
        return torch.sigmoid(s_max * self.embeddings[task].detach())


def _free_shares(past: dict[Units, Tensor]) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """1 − min(a_out, a_in) for weights; 1 − a_out for weights of the first layer, biases and norms."""
    for units, out in past.items():
        for layer, norm, reads in units.made_by:
            for p in [*layer.parameters(), *(norm.parameters() if norm is not None else ())]:
                taken = of_rows(out, p)
                if p is layer.weight and reads is not None:
                    taken = torch.minimum(taken, of_columns(past[reads], p))
                if p.requires_grad:  # the parameter's memory layout lets one pass multiply all gradients
                    yield p, torch.empty_like(p).copy_(1 - taken)
