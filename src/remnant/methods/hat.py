"""Hard attention to the task (Serrà et al., 2018): every task learns which units it uses, and what they need stays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from remnant.data import Split
from remnant.models import Network
from remnant.models.wiring import Units

from .parts.fixed_norm import FixedNorm

FARTHEST = 6.0  # embeddings stay within ±6: beyond, σ is flat even at s = 1
STEEPEST = 50.0  # s·e is cut off at ±50 in the compensation, or cosh would overflow
LONGEST = 1e4  # the norm gradients are cut to
TINY = 1e-12


class HAT(FixedNorm):
    """SGD on loss + c·Σ a(1 − a_<t)/Σ (1 − a_<t), through masks a = σ(s·e) on the units of every layer but the head.

    s rises from 1/s_max to s_max in every epoch, and is s_max at test. a_<t is the largest mask of the tasks before;
    it scales the gradient of what makes a unit by what is still free of it: a weight's by 1 − min(a_<t of the unit it
    makes, a_<t of the unit it reads), a bias's by 1 − a_<t of its unit. Norms belong to the first task.

    A unit is masked where the network says it is (`Network.wiring`): where its layer or its norm gives it, or after ReLU,
    dropout and pooling, which let a mask through. Embeddings e and a_<t are in the network's state, as `masks`.

    Args:
        s_max: how hard masks are at test.
        sparsity: c, what a unit costs that no task before has used.
    """

    name = "hat"
    needs_task = True
    logits_recordable = True

    def __init__(self, network: Network, *, lr: float, s_max: float = 400.0, sparsity: float = 0.75) -> None:
        super().__init__(network, lr=lr)
        self.s_max, self.sparsity = s_max, sparsity
        self.units = network.wiring()
        _check_wiring(network, self.units)
        self.masks = Masks(self.units, len(network.classes), network.example)
        network.masks = self.masks
        # Tensors: a captured step follows their changes.
        self.scale = self.masks.past.new_tensor(1 / s_max)
        self.rise = torch.zeros_like(self.scale)
        self._open()

    def start(self, task: int) -> None:
        super().start(task)
        self._open()

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
        """The body (its norms in the first task only), the task's own head, the task's own embedding."""
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
            self.embedding.clamp_(-FARTHEST, FARTHEST)
        self.scale += self.rise
        return loss.detach()

    def compensation(self) -> Tensor:
        """s_max/s·(cosh(s·e) + 1)/(cosh(e) + 1): what ∂a/∂e lacks at this s for the slope that σ(e) would have at s_max."""
        e = self.embedding.detach()
        steep = torch.cosh((self.scale * e).clamp(-STEEPEST, STEEPEST)) + 1
        return self.s_max / self.scale * steep / (torch.cosh(e) + 1)

    def finish(self, task: int, train: Split) -> None:
        """a_<t+1 = max(a_<t, a), at s_max."""
        self.masks.past.copy_(torch.maximum(self.masks.past, self.masks.hard(task, self.s_max)))

    def logits(self, x: Tensor, task: int) -> Tensor:
        with self.masks.shown(self.masks.hard(task, self.s_max)):
            return super().logits(x, task)

    def _open(self) -> None:
        """What past masks leave to a task: each parameter's share, and the price of each unit."""
        past = dict(zip(self.units, self.masks.past.split(self.masks.sizes), strict=True))
        fixed = self.fixed
        self.free = {p: share for p, share in _free(self.units, past) if p not in fixed}
        unused = 1 - self.masks.past
        self.price = self.sparsity * unused / unused.sum().clamp(min=TINY)

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (*self.masks.embeddings, self.masks.past))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "scale": self.scale, "rise": self.rise}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.scale.copy_(state["scale"])
        self.rise.copy_(state["rise"])
        self._open()

    def tensors(self) -> list[Tensor]:
        return [*super().tensors(), self.scale]


class Masks(nn.Module):
    """An embedding e ~ N(0, 1) per unit and task, those of all layers in one vector, and the largest past mask.

    Masks reach the network by hooks on its units; where none is shown, it answers unmasked.
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
        for number, each in enumerate(units):
            each.at.register_forward_hook(partial(self._mask, number))

    def hard(self, task: int, s_max: float) -> Tensor:
        return torch.sigmoid(s_max * self.embeddings[task].detach())

    @contextmanager
    def shown(self, masks: Tensor) -> Iterator[None]:
        """The network is masked meanwhile."""
        self._shown = masks.split(self.sizes)
        try:
            yield
        finally:
            self._shown = ()

    def _mask(self, number: int, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if not self._shown:
            return output
        return output * self._shown[number].view(-1, *(1 for _ in output.shape[2:]))


def clipped(gradients: list[Tensor]) -> list[Tensor]:
    """All of them made shorter by one factor, where together they are longer than 10⁴."""
    length = torch.stack(torch._foreach_norm(gradients)).norm()
    return list(torch._foreach_mul(gradients, (LONGEST / length.clamp(min=TINY)).clamp(max=1)))


def _check_wiring(network: Network, units: Sequence[Units]) -> None:
    """A network with parameters that make no units could not be protected."""
    body = [p for each in units for layer, norm, _ in each.made_by for p in _parameters(layer, norm)]
    made = {*body, *network.heads.parameters()}
    left = [name for name, p in network.named_parameters() if p not in made and p.requires_grad]
    if left:
        raise ValueError(f"{type(network).__name__}.wiring leaves out {', '.join(left)}: HAT could not protect them.")


def _free(units: Sequence[Units], past: dict[Units, Tensor]) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """1 − min(a_out, a_in) for weights, 1 − a_out for the first layer's, for biases and for norms."""
    for each in units:
        out = past[each]
        for layer, norm, reads in each.made_by:
            for parameter in _parameters(layer, norm):
                taken = out
                if parameter is layer.weight:
                    taken = out[:, None]
                    if reads is not None:  # a channel that was flattened feeds several columns, one after another
                        columns = past[reads].repeat_interleave(parameter.shape[1] // reads.count)
                        taken = torch.minimum(taken, columns)
                    taken = taken.view(*taken.shape, *(1 for _ in parameter.shape[2:]))
                # laid out as the parameter is: one pass then multiplies all of them
                yield parameter, torch.empty_like(parameter).copy_(1 - taken)


def _parameters(layer: nn.Module, norm: nn.Module | None) -> list[nn.Parameter]:
    return [p for module in (layer, norm) if module is not None for p in module.parameters() if p.requires_grad]
