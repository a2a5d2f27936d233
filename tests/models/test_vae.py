"""The autoencoder's loss by hand, and that it learns to make what it has seen."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from remnant.models import VAE


def test_the_loss_is_the_evidence_bound_of_gaussians() -> None:
    vae = VAE((2, 3), hidden=(7, 5), latent=4, variance=0.3).double()
    x = torch.randn(8, 2, 3, dtype=torch.float64)
    state = torch.get_rng_state()
    loss = vae.loss(x)
    torch.set_rng_state(state)
    mean, log_variance = vae.encode(x)
    q = Normal(mean, log_variance.exp().sqrt())
    z = mean + q.scale * torch.randn(8, 4, dtype=torch.float64)
    likelihood = Normal(vae.decode(z), 0.3**0.5).log_prob(x).flatten(1).sum(1)
    constant = Normal(0.0, 0.3**0.5).log_prob(torch.zeros(1)).item() * 6  # of a perfect likeness
    bound = likelihood - constant - kl_divergence(q, Normal(0.0, 1.0)).sum(1)
    assert loss.item() == pytest.approx(-bound.mean().item() / 6, rel=1e-6)


def test_it_has_the_layers_it_is_told() -> None:
    vae = VAE((1, 28, 28), hidden=(40, 20), latent=3)
    shapes = [tuple(p.shape) for p in vae.parameters() if p.ndim == 2]
    assert shapes == [(40, 784), (20, 40), (6, 20), (20, 3), (40, 20), (784, 40)]
    assert vae.sample(5).shape == (5, 1, 28, 28)


def test_it_makes_what_it_has_seen() -> None:
    """Two clusters on a line: samples lie along the line and at both of its ends."""
    vae = VAE((6,), hidden=(30,), latent=2, variance=0.05)
    centres = torch.tensor([[2.0] * 6, [-2.0] * 6])
    optimizer = torch.optim.Adam(vae.parameters(), lr=0.01)
    for _ in range(300):
        x = centres[torch.randint(0, 2, (64,))] + 0.1 * torch.randn(64, 6)
        optimizer.zero_grad()
        vae.loss(x).backward()
        optimizer.step()
    with torch.no_grad():
        samples = vae.sample(400)
    along = samples.mean(1, keepdim=True)
    assert (samples - along).abs().mean() < 0.3
    assert along.std() > 1
    assert 0.25 < (along > 0).float().mean() < 0.75
