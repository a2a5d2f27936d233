"""A generator of inputs of past tasks, its training step, and labels for what it generates."""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from remnant.models import VAE, Network
from remnant.options import Positive, number

from .replay import Replay

Variance = Annotated[float, number(0, 1e6, above=True)]
Rate = Annotated[float, number(0, 10, above=True)]


class Generative(Replay):
    """Replay with a `generator`: a `VAE` with `hidden` units, a code of size `latent` and a pixel `variance`."""

    generator: VAE

    def __init__(
        self,
        network: Network,
        *,
        hidden: Sequence[Positive] = (400,),
        latent: Positive = 32,
        variance: Variance = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(network, **options)
        self.keep("generator", new_generator(network, hidden, latent, variance))


def new_generator(network: Network, hidden: Sequence[int], latent: int, variance: float) -> VAE:
    """Returns a generator of the network's inputs, on the network's device and with its dtype."""
    with torch.device(network.example.device):  # on a GPU, only its own random numbers follow the run's seed
        return VAE(network.input_shape, hidden=hidden, latent=latent, variance=variance).to(network.example)


def best_class(solver: Network, x: Tensor, tasks: int) -> Tensor:
    """Returns the class with the highest score among the first `tasks` tasks, numbered through all heads."""
    heads = [solver.head_of(task) for task in range(tasks if solver.multi_head else 1)]
    features = solver.features(x)
    return torch.cat([head(features) for head in heads], dim=1).argmax(1)


def step_with(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Takes one step of an optimizer with one group of parameters."""
    parameters: list[nn.Parameter] = optimizer.param_groups[0]["params"]
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    optimizer.step()
    optimizer.zero_grad()
