"""The optimizers that a run can choose. Each has a state that starts at zero and can step inside a CUDA graph."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn, optim

from remnant.options import Share, number
from remnant.registry import Registry

Decay = Annotated[float, number(0, 10)]
Betas = tuple[Share, Share]
Epsilon = Annotated[float, number(0, 1, above=True)]
# (parameters, learning rate on their device) → optimizer
OptimizerFactory = Callable[[Sequence[nn.Parameter], Tensor], optim.Optimizer]


def sgd(*, momentum: Share = 0.0, nesterov: bool = False, weight_decay: Decay = 0.0) -> OptimizerFactory:
    # Only the fused kernel reads the learning rate on the device. Adam's takes a quarter of the time on a CPU.
    return partial(optim.SGD, fused=True, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)


def adam(*, betas: Betas = (0.9, 0.999), eps: Epsilon = 1e-8, weight_decay: Decay = 0.0) -> OptimizerFactory:
    return partial(optim.Adam, fused=True, betas=betas, eps=eps, weight_decay=weight_decay)


def adamw(*, betas: Betas = (0.9, 0.999), eps: Epsilon = 1e-8, weight_decay: Decay = 0.01) -> OptimizerFactory:
    return partial(optim.AdamW, fused=True, betas=betas, eps=eps, weight_decay=weight_decay)


def rmsprop(
    *, alpha: Share = 0.99, momentum: Share = 0.0, eps: Epsilon = 1e-8, weight_decay: Decay = 0.0
) -> OptimizerFactory:
    return partial(optim.RMSprop, alpha=alpha, momentum=momentum, eps=eps, weight_decay=weight_decay)


OPTIMIZERS: Registry[Callable[..., OptimizerFactory]] = Registry("optimizer", "remnant.optimizers")
OPTIMIZERS.update(sgd=sgd, adam=adam, adamw=adamw, rmsprop=rmsprop)


@torch.no_grad()
def initial_state(optimizer: optim.Optimizer) -> list[Tensor]:
    """Creates the state of an optimizer, all zeros, and returns its tensors. A captured step must find them in place."""
    group = optimizer.param_groups[0]
    parameters = group["params"]
    if "capturable" in group:
        group["capturable"] = parameters[0].is_cuda
        group["foreach"] = parameters[0].is_cuda and not group.get("fused")
    before = [parameter.clone() for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    torch._foreach_copy_(parameters, before)
    state = [value for parameter in parameters for value in optimizer.state[parameter].values()]
    return [value.zero_() for value in state if isinstance(value, Tensor)]
