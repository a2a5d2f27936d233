"""Deep generative replay (Shin et al., 2017): a generator dreams up inputs of past tasks, and the old solver labels them."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from remnant.data import Split
from remnant.models import VAE, Network
from remnant.options import Positive, number

from .optimizers import adam, initial_state
from .parts.replay import Replay

Variance = Annotated[float, number(0, 1e6, above=True)]
Rate = Annotated[float, number(0, 10, above=True)]


class DGR(Replay):
    """At task t, solver and generator learn from (1/t)·loss(new) + (1 − 1/t)·loss(replayed).

    A batch is replayed for every new one: the generator that ended the last task makes its inputs, and the solver that ended
    the last task labels them with its best class of all heads. The solver is the network. The generator is a `VAE` with
    `hidden` units, a code of size `latent` and a pixel variance, and it learns with Adam at `generator_lr`.
    """

    name = "dgr"
    generator: VAE
    generator_state: list[Tensor]
    old_generator: VAE
    old_solver: Network

    def __init__(
        self,
        network: Network,
        *,
        hidden: Sequence[Positive] = (400,),
        latent: Positive = 32,
        variance: Variance = 1.0,
        generator_lr: Rate = 1e-3,
        **options: Any,
    ) -> None:
        super().__init__(network, **options)
        vae = new_generator(network, hidden, latent, variance)
        self.keep("generator", vae)
        self.generator_optimizer = adam()(list(vae.parameters()), torch.tensor(generator_lr, device=self.device))
        self.keep("generator_state", initial_state(self.generator_optimizer), counted=False)
        self.keep("old_generator", deepcopy(vae), per_step=False, counted=False)
        self.keep("old_solver", deepcopy(network).eval(), per_step=False, counted=False)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        share = 1 / (self.task + 1)
        loss = share * self.loss(x, y)
        generator_loss = share * self.generator.loss(x)
        if self.task > 0:
            replayed, labels = self.replay(len(y))
            loss = loss + (1 - share) * self.mixed_loss(replayed, labels)
            generator_loss = generator_loss + (1 - share) * self.generator.loss(replayed)
        self.apply_gradients(self.gradients(loss))
        step_with(self.generator_optimizer, generator_loss)
        return loss.detach()

    @torch.no_grad()
    def replay(self, count: int) -> tuple[Tensor, Tensor]:
        """Returns generated inputs and their labels, numbered through all heads."""
        x = self.old_generator.sample(count)
        return x, best_class(self.old_solver, x, self.task)

    def finish(self, task: int, train: Split) -> None:
        self.old_generator.load_state_dict(self.generator.state_dict())
        self.old_solver.load_state_dict(self.network.state_dict())


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
