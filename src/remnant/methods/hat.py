"""Hard attention to the task (Serrà et al., 2018): every task learns which units it uses, and their weights stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from remnant.data import Split
from remnant.models import Network, Units
from remnant.options import number

from .parts.fixed_norm import FixedNorm

EMBEDDING_LIMIT = 6.0  # beyond ±6, σ is flat even at s = 1
COSH_LIMIT = 50.0  # s·e is cut off here in the compensation, or cosh would overflow
GRADIENT_LIMIT = 1e4  # gradients are scaled down to this norm
TINY = 1e-12


class HAT(FixedNorm):
    """SGD on loss + c·Σ a(1 − a_<t)/Σ (1 − a_<t), through masks a = σ(s·e) on the units of every layer but the head.

    s rises from 1/s_max to s_max in every epoch, and is s_max at test time. a_<t is the largest mask of the earlier tasks. It
    scales gradients: a weight's by 1 − min(a_<t of its output unit, a_<t of its input unit), a bias's by 1 − a_<t of its unit.
    Norms belong to the first task. The network says where its units are (`Network.wiring`): at the output of their layer or
    norm, or after ReLU, dropout and pooling, which let a mask through.

    Args:
        s_max: How hard the masks are at test time.
        sparsity: c, the price of a unit that no earlier task has used.
    """

    name = "hat"
    needs_task = True
    masks: Masks
    scale: Tensor  # s
    rise: Tensor  # of s, from one step to the next

    def __init__(
        self,
        network: Network,
        *,
        s_max: Annotated[float, number(1, 1e6)] = 400.0,
        sparsity: Annotated[float, number(0, 1e3)] = 0.75,
        **options: Any,
    ) -> None:
        super().__init__(network, **options)
        self.s_max, self.sparsity = s_max, sparsity
        self.units = network.wiring()
        _check_wiring(network, self.units)
        self.keep("masks", Masks(self.units, len(network.classes), network.example))
        network.masks = self.masks  # part of the network, so that early stopping restores the embeddings too
        self.keep("scale", self.masks.past.new_tensor(1 / s_max), counted=False)
        self.keep("rise", torch.zeros_like(self.scale), counted=False)
        self.refresh()

    def refresh(self) -> None:
        """Computes what past masks leave to a task: each parameter's share, and the price of each unit."""
        past = dict(zip(self.units, self.masks.past.split(self.masks.sizes), strict=True))
        fixed = self.fixed
        self.free = {p: share for p, share in _free_shares(self.units, past) if p not in fixed}
        unused = 1 - self.masks.past
        self.price = self.sparsity * unused / unused.sum().clamp(min=TINY)

    def on_epoch_start(self, epoch: int, epochs: int, steps: int) -> None:
        """s = 1/s_max + (s_max − 1/s_max)·b/(B − 1) at step b = 0, …, B − 1."""
        self.scale.fill_(1 / self.s_max)
        self.rise.fill_((self.s_max - 1 / self.s_max) / max(1, steps - 1))

    @property
    def embedding(self) -> nn.Parameter:
        embedding: nn.Parameter = self.masks.embeddings[self.task]
        return embedding

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The body (with norms in the first task only), the task's head and the task's embedding."""
        return [*self.free, *(p for p in self.head.parameters() if p.requires_grad), self.embedding]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        masks = torch.sigmoid(self.scale * self.embedding)
        with self.masks.shown(masks):
            return super().loss(x, y) + masks @ self.price

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self.loss(x, y)
        gradients = self.gradients(loss)
        body = torch._foreach_mul(gradients[: len(self.free)], list(self.free.values()))
        embedding = gradients[-1] * self.compensation()
        self.apply_gradients(clipped([*body, *gradients[len(self.free) : -1], embedding]))
        with torch.no_grad():
            self.embedding.clamp_(-EMBEDDING_LIMIT, EMBEDDING_LIMIT)
        self.scale += self.rise
        return loss.detach()

    def compensation(self) -> Tensor:
        """s_max/s·(cosh(s·e) + 1)/(cosh(e) + 1): scales ∂a/∂e at this s to the slope that σ(e) would have at s_max."""
        e = self.embedding.detach()
        steep = torch.cosh((self.scale * e).clamp(-COSH_LIMIT, COSH_LIMIT)) + 1
        return self.s_max / self.scale * steep / (torch.cosh(e) + 1)

    def finish(self, task: int, train: Split) -> None:
        """a_<t+1 = max(a_<t, a), at s_max."""
        self.masks.past.copy_(torch.maximum(self.masks.past, self.masks.hard(task, self.s_max)))

    logits_recordable = True

    def logits(self, x: Tensor, task: int) -> Tensor:
        with self.masks.shown(self.masks.hard(task, self.s_max)):
            return super().logits(x, task)


class Masks(nn.Module):
    """An embedding e ~ N(0, 1) per unit and task, one vector for all layers, and the largest past mask.

    Hooks apply masks to the network's units inside `shown`; outside, the network is unmasked.
    """

    past: Tensor

    def __init__(self, units: Sequence[Units], tasks: int, like: Tensor) -> None:
        super().__init__()
        self.sizes = [each.count for each in units]
        total = sum(self.sizes)
        self.embeddings = nn.ParameterList(
            torch.randn(total, dtype=like.dtype, device=like.device) for _ in range(tasks)
        )
        self.register_buffer("past", like.new_zeros(total))
        self._shown: tuple[Tensor, ...] = ()
        for position, each in enumerate(units):
            each.at.register_forward_hook(partial(self._mask, position))

    def hard(self, task: int, s_max: float) -> Tensor:
        return torch.sigmoid(s_max * self.embeddings[task].detach())

    @contextmanager
    def shown(self, masks: Tensor) -> Iterator[None]:
        self._shown = masks.split(self.sizes)
        try:
            yield
        finally:
            self._shown = ()

    def _mask(self, position: int, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if not self._shown:
            return output
        return output * self._shown[position].view(-1, *(1 for _ in output.shape[2:]))


def clipped(gradients: list[Tensor]) -> list[Tensor]:
    """Scales all gradients by one factor so that their joint norm is at most 10⁴."""
    length = torch.stack(torch._foreach_norm(gradients)).norm()
    return list(torch._foreach_mul(gradients, (GRADIENT_LIMIT / length.clamp(min=TINY)).clamp(max=1)))


def _check_wiring(network: Network, units: Sequence[Units]) -> None:
    """Refuses a network with parameters that belong to no units: they could not be protected."""
    body = [p for each in units for layer, norm, _ in each.made_by for p in _parameters(layer, norm)]
    made = {*body, *network.heads.parameters()}
    left = [name for name, p in network.named_parameters() if p not in made and p.requires_grad]
    if left:
        raise ValueError(f"{type(network).__name__}.wiring leaves out {', '.join(left)}: HAT could not protect them.")


def _free_shares(units: Sequence[Units], past: dict[Units, Tensor]) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """1 − min(a_out, a_in) for weights; 1 − a_out for weights of the first layer, biases and norms."""
    for each in units:
        out = past[each]
        for layer, norm, reads in each.made_by:
            for parameter in _parameters(layer, norm):
                taken = out
                if parameter is layer.weight:
                    taken = out[:, None]
                    if reads is not None:  # a flattened channel feeds several adjacent columns
                        columns = past[reads].repeat_interleave(parameter.shape[1] // reads.count)
                        taken = torch.minimum(taken, columns)
                    taken = taken.view(*taken.shape, *(1 for _ in parameter.shape[2:]))
                # The parameter's memory layout lets one pass multiply all gradients.
                yield parameter, torch.empty_like(parameter).copy_(1 - taken)


def _parameters(layer: nn.Module, norm: nn.Module | None) -> list[nn.Parameter]:
    return [p for module in (layer, norm) if module is not None for p in module.parameters() if p.requires_grad]
