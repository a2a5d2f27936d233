"""Elastic weight consolidation (Kirkpatrick et al., 2017): important weights are tied to their old values."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from remnant.data import Split
from remnant.models import Network
from remnant.options import Positive, number

from .base import Method
from .parts.gradients import default_layout

AT_ONCE = 2**26  # numbers in all gradients that are in memory at a time
NORM_BATCH = 64  # examples whose statistics batch normalisation uses for a single example
Strength = Annotated[float, number(0, 1e9)]


class EWC(Method):
    """SGD on loss + λ/2·Σ F(θ − θ*)², where θ* ended the last task and F is the mean of the tasks' Fisher diagonals.

    The sum runs over the parameters that all tasks move (`shared_parameters`). λ is the `strength`. λF is cut off at 1/lr,
    which pulls a weight back to θ* in one step: beyond, SGD would overshoot θ*, and from 2/lr on diverge.

    The gradients of `fisher_batch` examples are averaged before they are squared (see `fisher_diagonal`). 1 is the definition.
    The public implementation behind the paper's figures uses 20, and leaves dropout on, which enlarges the Fisher; here
    dropout is off.
    """

    name = "ewc"
    freezes_norms = True
    fisher: list[Tensor]
    last: list[Tensor]

    def __init__(
        self, network: Network, *, strength: Strength = 50.0, fisher_batch: Positive = 1, **options: Any
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

    def gradients(self, loss: Tensor) -> dict[Tensor, Tensor]:
        """∇loss + stiffness·(θ − θ*)."""
        gradients, shared = super().gradients(loss), list(self.shared.values())
        away = torch._foreach_sub([p.detach() for p in shared], self.last)
        pulled = torch._foreach_addcmul([gradients[p] for p in shared], self.stiffness, away)
        return gradients | dict(zip(shared, pulled, strict=True))

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

    Batches are random; the last one is dropped if it is not full. Batches of one give the diagonal of the empirical Fisher
    information; in larger ones gradients cancel before they are squared, which gives about F/|B|. Batch normalisation has no
    statistics for one example: it uses those of `NORM_BATCH` random examples as constants. Larger batches have their own.
    """
    network.eval()
    batch = min(batch, len(train))
    order = torch.randperm(len(train), device=train.y.device)
    batches = order[: len(order) - len(order) % batch].view(-1, batch)
    at_once = max(1, AT_ONCE // sum(p.numel() for p in parameters.values()))
    norms = [each for each in network.modules() if isinstance(each, _BatchNorm) and each.running_mean is None]
    shared_statistics = batch == 1 and bool(norms)
    weights = {name: default_layout(parameter.detach()) for name, parameter in parameters.items()}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(network, weights, (x, task)), y)

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))
    total = [torch.zeros_like(weight) for weight in weights.values()]
    count = 0
    for group in batches.split(NORM_BATCH if shared_statistics else at_once):
        if shared_statistics:
            if len(group) == 1:
                continue  # the last example of the set has no others to share statistics with
            _fix_statistics(norms, network, train.x[group.flatten()], task)
        for part in group.split(at_once):
            found = gradients(weights, default_layout(train.x[part]), train.y[part])
            torch._foreach_add_(total, [g.square().sum(0) for g in found.values()])
        count += len(group)
    for norm in norms:
        norm.running_mean = norm.running_var = None
    torch._foreach_div_(total, max(1, count))
    return total


def _fix_statistics(norms: list[_BatchNorm], network: Network, x: Tensor, task: int) -> None:
    """Lets batch normalisation use the statistics of `x` as constants."""

    def fix(norm: _BatchNorm, inputs: tuple[Tensor]) -> None:
        axes = [axis for axis in range(inputs[0].ndim) if axis != 1]
        norm.running_var, norm.running_mean = torch.var_mean(inputs[0], axes, correction=0)

    with ExitStack() as hooks:
        for norm in norms:
            hooks.enter_context(norm.register_forward_pre_hook(fix))
        network(x, task)
