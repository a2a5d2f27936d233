"""A small variational autoencoder (Kingma & Welling, 2014), for methods that replay generated inputs."""

from collections.abc import Sequence
from itertools import chain, pairwise
from math import prod

import torch
from torch import Tensor, nn


class VAE(nn.Module):
    """p(x|z) = N(decoder(z), σ²) and q(z|x) = N(μ(x), s(x)²), both fully connected with ReLU.

    Args:
        input_shape: the shape of one input, without the batch.
        hidden: the units of the encoder's hidden layers; the decoder has them in reverse.
        latent: the size of z.
        variance: σ². The smaller it is, the sharper are rebuilt inputs, and the fewer codes z give a good one.
    """

    def __init__(
        self, input_shape: Sequence[int], *, hidden: Sequence[int] = (400,), latent: int = 32, variance: float = 1.0
    ) -> None:
        super().__init__()
        self.input_shape, self.latent, self.variance = tuple(input_shape), latent, variance
        size = prod(self.input_shape)
        self.encoder = _layers(size, *hidden, 2 * latent)
        self.decoder = _layers(latent, *reversed(hidden), size)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns μ and log s²."""
        mean, log_variance = self.encoder(x.flatten(1)).chunk(2, dim=1)
        return mean, log_variance

    def decode(self, z: Tensor) -> Tensor:
        """Returns the mean input for each z."""
        x: Tensor = self.decoder(z)
        return x.view(-1, *self.input_shape)

    def loss(self, x: Tensor) -> Tensor:
        """Returns ‖x − decoder(z)‖²/2σ² + KL(q‖N(0, I)), averaged over the batch and divided by the size of an input."""
        mean, log_variance = self.encode(x)
        z = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        error = (self.decode(z) - x).square().mean() / (2 * self.variance)
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean() / 2
        return error + divergence / prod(self.input_shape)

    def sample(self, count: int) -> Tensor:
        """Returns mean inputs for z ~ N(0, I)."""
        weight = next(self.parameters())
        return self.decode(torch.randn(count, self.latent, device=weight.device, dtype=weight.dtype))


def _layers(*sizes: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    pairs = ((nn.Linear(inputs, outputs), nn.ReLU()) for inputs, outputs in pairwise(sizes))
    return nn.Sequential(*list(chain.from_iterable(pairs))[:-1])
