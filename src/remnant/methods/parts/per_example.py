"""Means over examples of a function of each example's gradient, such as the Fisher diagonal."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from remnant.data import Split
from remnant.models import Network

from .gradients import default_layout

AT_ONCE = 2**26  # numbers in all gradients that are in memory at a time
NORM_BATCH = 64  # examples whose statistics batch normalisation uses for a single example


@torch.no_grad()  # otherwise the parameters that are not differentiated would record a graph
def mean_over_examples(
    objective: Callable[[Tensor, Tensor], Tensor],
    size: Callable[[Tensor], Tensor],
    network: Network,
    parameters: Mapping[str, Tensor],
    train: Split,
    task: int,
    *,
    batch: int = 1,
) -> list[Tensor]:
    """Returns 1/|𝓑| · Σ_{B∈𝓑} size(∇θ objective(f(x_B), y_B)) for each parameter, elementwise and without dropout.

    Batches are random; the last one is dropped if it is not full. Batch normalisation has no statistics for one example: it
    uses the statistics of `NORM_BATCH` random examples as constants. Larger batches have their own.
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
        return objective(functional_call(network, weights, (x, task)), y)

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
            torch._foreach_add_(total, [size(g).sum(0) for g in found.values()])
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
