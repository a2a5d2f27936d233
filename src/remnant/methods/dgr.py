"""Deep generative replay (Shin et al., 2017): a generator makes inputs of past tasks, and the old solver labels them."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from remnant.data import Split
from remnant.models import VAE, Network

from .optimizers import adam, initial_state
from .parts.generative import Generative, Rate, best_class, step_with


class DGR(Generative):
    """At task t, solver and generator learn from (1/t)·loss(new) + (1 − 1/t)·loss(replayed).

    A batch is replayed for every new one: the generator that ended the last task makes its inputs, and the solver that ended
    the last task labels them with its best class of all heads. The solver is the network. The generator is a `VAE` with
    `hidden` units, a code of size `latent` and a pixel variance, and it learns with Adam at `generator_lr`.
    """

    name = "dgr"
    generator_state: list[Tensor]
    old_generator: VAE
    old_solver: Network

    def __init__(self, network: Network, *, generator_lr: Rate = 1e-3, **options: Any) -> None:
        super().__init__(network, **options)
        learnt = list(self.generator.parameters())
        self.generator_optimizer = adam()(learnt, torch.tensor(generator_lr, device=self.device))
        self.keep("generator_state", initial_state(self.generator_optimizer), counted=False)
        self.keep("old_generator", deepcopy(self.generator), per_step=False, counted=False)
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
