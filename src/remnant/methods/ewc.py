"""Elastic weight consolidation (Kirkpatrick et al., 2017): important weights are tied to their old values."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from remnant.data import Split
from remnant.models import Network
from remnant.options import Positive, number

from .parts.fixed_norm import FixedNorm
from .parts.gradients import default_layout

AT_ONCE = 2**26  # numbers in all gradients that are in memory at a time
COMPANY = 64  # examples whose batch statistics a single example uses


class EWC(FixedNorm):
    """SGD on loss + λ/2·Σ F(θ − θ*)², where θ* ended the last task and F is the mean of the tasks' Fisher diagonals.

    The sum runs over the parameters that all tasks move (`shared_parameters`). λF is cut off at 1/lr, which pulls a weight
    back to θ* in one step: beyond, SGD would overshoot θ*, and from 2/lr on diverge.

    Args:
        strength: λ.
        fisher_batch: How many examples' gradients are averaged before they are squared (see `fisher_diagonal`). 1 is the
            definition. The public implementation behind the paper's figures uses 20, and leaves dropout on, which enlarges
            the Fisher; here dropout is off.
    """

    name = "ewc"
    fisher: list[Tensor]
    last: list[Tensor]

    def __init__(
        self,
        network: Network,
        *,
        strength: Annotated[float, number(0, 1e9)] = 50.0,
        fisher_batch: Positive = 1,
        **options: Any,
    ) -> None:
        super().__init__(network, **options)
        self.strength, self.fisher_batch = strength, fisher_batch
        self.shared = self.shared_parameters()
        self.keep("fisher", [torch.zeros_like(p) for p in self.shared.values()], per_step=False)
        self.keep("last", [p.detach().clone() for p in self.shared.values()], per_step=False)
        self.stiffness = [torch.zeros_like(f) for f in self.fisher]

    def refresh(self) -> None:
        """Stiffness = min(λF, 1/lr)."""
        for stiffness, fisher in zip(self.stiffness, self.fisher, strict=True):
            torch.minimum(self.strength * fisher, 1 / self.lr, out=stiffness)

    def on_epoch_start(self, epoch: int, epochs: int, steps: int) -> None:
        self.refresh()  # the learning rate may have changed

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self.loss(x, y)
        gradients: dict[Tensor, Tensor] = dict(zip(self.parameters, self.gradients(loss), strict=True))
        shared = list(self.shared.values())
        away = torch._foreach_sub([p.detach() for p in shared], self.last)
        pulled = torch._foreach_addcmul([gradients[p] for p in shared], self.stiffness, away)
        gradients.update(zip(shared, pulled, strict=True))
        self.apply_gradients(list(gradients.values()))
        return loss.detach()

    def finish(self, task: int, train: Split) -> None:
        """F ← (F_new + t·F)/(t + 1) after t earlier tasks; θ* ← θ."""
        new = fisher_diagonal(self.network, self.shared, train, task, batch=self.fisher_batch)
        torch._foreach_lerp_(self.fisher, new, 1 / (task + 1))
        torch._foreach_copy_(self.last, [p.detach() for p in self.shared.values()])


@torch.no_grad()  # outside of `grad`, the other parameters would record every graph
def fisher_diagonal(
    network: Network, parameters: Mapping[str, Tensor], train: Split, task: int, *, batch: int = 1
) -> list[Tensor]:
    """F = 1/|𝓑| · Σ_{B∈𝓑} (∇θ 1/|B| · Σ_{i∈B} log p(y_i|x_i, θ))², squared elementwise, with labels y_i and without dropout.

    Batches of one give the diagonal of the empirical Fisher information. Larger batches average gradients before squaring,
    which gives about F/|B| where gradients cancel. Batches are random, and the last one is dropped if it is not full.

    Batch normalisation has no statistics for one example. It then uses those of 64 random examples as constants, while each
    of the 64 is differentiated alone. Larger batches use their own statistics and differentiate them too.
    """
    network.eval()
    batch = min(batch, len(train))
    order = torch.randperm(len(train), device=train.y.device)
    batches = order[: len(order) - len(order) % batch].view(-1, batch)
    at_once = max(1, AT_ONCE // sum(p.numel() for p in parameters.values()))
    borrowed = batch == 1 and bool(_by_batch(network))
    weights = {name: default_layout(parameter.detach()) for name, parameter in parameters.items()}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(network, weights, (x, task)), y)

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))
    total = [torch.zeros_like(weight) for weight in weights.values()]
    count = 0
    for group in batches.split(COMPANY if borrowed else at_once):
        if borrowed and len(group) == 1:
            continue  # the last example of the set has nobody to borrow from
        with _fixed_statistics(network, train.x[group.flatten()], task, borrowed):
            for part in group.split(at_once):
                found = gradients(weights, default_layout(train.x[part]), train.y[part])
                torch._foreach_add_(total, [g.square().sum(0) for g in found.values()])
        count += len(group)
    torch._foreach_div_(total, max(1, count))
    return total


@contextmanager
def _fixed_statistics(network: Network, x: Tensor, task: int, fixed: bool) -> Iterator[None]:
    """Inside, batch normalisation without running statistics uses those of `x` as constants."""
    norms = _by_batch(network) if fixed else []

    def fix(norm: _BatchNorm, inputs: tuple[Tensor]) -> None:
        axes = [axis for axis in range(inputs[0].ndim) if axis != 1]
        norm.running_var, norm.running_mean = torch.var_mean(inputs[0], axes, correction=0)

    hooks = [norm.register_forward_pre_hook(fix) for norm in norms]
    try:
        if norms:
            network(x, task)
        for hook in hooks:
            hook.remove()
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for norm in norms:
            norm.running_mean = norm.running_var = None


def _by_batch(network: Network) -> list[_BatchNorm]:
    return [module for module in network.modules() if isinstance(module, _BatchNorm) and module.running_mean is None]
