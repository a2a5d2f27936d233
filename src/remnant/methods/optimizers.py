"""The optimisers that a run can choose. Each has a state that starts at zero and can step inside a CUDA graph."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn, optim

from remnant.options import Share, number
from remnant.registry import Registry

Decay = Annotated[float, number(0, 10)]
Betas = tuple[Share, Share]
Epsilon = Annotated[float, number(0, 1, above=True)]
# (parameters, learning rate on their device) → optimiser
OptimizerFactory = Callable[[Sequence[nn.Parameter], Tensor], optim.Optimizer]

OPTIMIZERS: Registry[Callable[..., OptimizerFactory]] = Registry("optimizer", "remnant.optimizers")


def sgd(*, momentum: Share = 0.0, nesterov: bool = False, weight_decay: Decay = 0.0) -> OptimizerFactory:
    # Only the fused kernel reads the learning rate on the device.
    return _factory(optim.SGD, fused=True, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)


def _adam(kind: Callable[..., optim.Optimizer], default_decay: float) -> Callable[..., OptimizerFactory]:
    def adam(
        *, betas: Betas = (0.9, 0.999), eps: Epsilon = 1e-8, weight_decay: Decay = default_decay
    ) -> OptimizerFactory:
        return _factory(kind, betas=betas, eps=eps, weight_decay=weight_decay)

    return adam


def rmsprop(
    *, alpha: Share = 0.99, momentum: Share = 0.0, eps: Epsilon = 1e-8, weight_decay: Decay = 0.0
) -> OptimizerFactory:
    return _factory(optim.RMSprop, alpha=alpha, momentum=momentum, eps=eps, weight_decay=weight_decay)


OPTIMIZERS.update(sgd=sgd, adam=_adam(optim.Adam, 0.0), adamw=_adam(optim.AdamW, 0.01), rmsprop=rmsprop)


def _factory(kind: Callable[..., optim.Optimizer], **options: Any) -> OptimizerFactory:
    def make(parameters: Sequence[nn.Parameter], lr: Tensor) -> optim.Optimizer:
        on_gpu = parameters[0].is_cuda
        kernels = {} if kind is optim.SGD else {"capturable": on_gpu, "foreach": on_gpu}
        return kind(parameters, lr=lr, **kernels, **options)

    return make


@torch.no_grad()
def initial_state(optimizer: optim.Optimizer) -> list[Tensor]:
    """Creates the state of an optimiser, all zeros, and returns its tensors. A captured step must find them in place."""
    parameters = optimizer.param_groups[0]["params"]
    before = [parameter.clone() for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    torch._foreach_copy_(parameters, before)
    state = [value for parameter in parameters for value in optimizer.state[parameter].values()]
    return [value.zero_() for value in state if isinstance(value, Tensor)]
