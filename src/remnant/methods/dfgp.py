"""Data-augmented flatness-aware gradient projection, DFGP (Yang et al., 2023, 2025), for GPM, SGP, TRGP and ROGO."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.distributions import Beta

from remnant.models import Network
from remnant.options import number

from .gpm import GradientProjection
from .parts.gradients import joint_norm
from .rogo import ROGO
from .sgp import SGP
from .trgp import TRGP


class Flat(GradientProjection):
    """Steps along the projected gradient of L at a point uphill, for the projection of the method that it extends.

    L = loss(x, y) + w·loss(x̃, ỹ), where x̃ = s·x + (1 − s)·x' mixes two examples (`mixed`), w is `mixup_weight`, and each s is
    drawn from Beta(a, a) with a = `beta`. Uphill means that all weights move by ρ·∇L/‖∇L‖ and the shares s of a batch by
    ρ·∇ₛL/‖∇ₛL‖ within [0, 1]; ρ is the `radius`. With w = ρ = 0, the method takes the steps of the one that it extends.

    `labels_swapped` repeats a fault of the public code, which mixes labels the other way round than examples.
    """

    def __init__(
        self,
        network: Network,
        *,
        radius: Annotated[float, number(0, 10)] = 0.05,
        mixup_weight: Annotated[float, number(0, 100)] = 0.01,
        beta: Annotated[float, number(0, 1000, above=True)] = 20.0,
        labels_swapped: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(network, **options)
        self.radius, self.mixup_weight, self.labels_swapped = radius, mixup_weight, labels_swapped
        concentration = torch.full((), beta, device=self.device)
        self.beta = Beta(concentration, concentration, validate_args=False)  # its checks would wait for the device

    def objective(self, x: Tensor, y: Tensor, share: Tensor | None) -> Tensor:
        """Returns L."""
        loss = self.loss(x, y)
        if share is None:
            return loss
        classes = self.network.head_of(self.task).out_features
        both = mixed(x, y, share, classes, labels_swapped=self.labels_swapped)
        return loss + self.mixup_weight * self.loss(*both)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        share = self.beta.sample(y.shape).to(x.dtype).requires_grad_() if self.mixup_weight else None
        if not self.radius:
            loss, gradients = self.projected(lambda: self.objective(x, y, share), len(x))
        else:
            # What the memory has frozen moves uphill too.
            weights = [*self.parameters, *self.projector.frozen_parameters]
            shares = [] if share is None else [share]
            found = torch.autograd.grad(self.objective(x, y, share), [*weights, *shares])
            if share is not None:
                share = (share + uphill(found[-1:], self.radius)[0]).clamp(0, 1).detach()
            with ascended(weights, found[: len(weights)], self.radius):
                loss, gradients = self.projected(lambda: self.objective(x, y, share), len(x))
        self.apply_gradients(gradients)
        return loss


def mixed(x: Tensor, y: Tensor, share: Tensor, classes: int, *, labels_swapped: bool = False) -> tuple[Tensor, Tensor]:
    """Mixup (Zhang et al., 2018): s·x + (1 − s)·x' and s·y + (1 − s)·y', as soft labels, with a gradient for s.

    s is the `share` of each example, and x' the example before x in the batch, whose order is random. With `labels_swapped`,
    the labels have 1 − s in the place of s.
    """
    labels = torch.eye(classes, dtype=x.dtype, device=x.device)[y]
    of_label = (1 - share if labels_swapped else share)[:, None]
    of_pixel = share.view(-1, *(1 for _ in x.shape[1:]))
    return (
        of_pixel * x + (1 - of_pixel) * x.roll(1, 0),
        of_label * labels + (1 - of_label) * labels.roll(1, 0),
    )


def uphill(gradients: Sequence[Tensor], radius: float) -> list[Tensor]:
    """Returns radius·g/‖g‖, where g are all gradients together."""
    return list(torch._foreach_mul(list(gradients), radius / joint_norm(gradients)))


@contextmanager
def ascended(parameters: Sequence[Tensor], gradients: Sequence[Tensor], radius: float) -> Iterator[None]:
    """Inside the block, the parameters have moved uphill by `radius` (Foret et al., 2021). Afterwards they are back."""
    weights = [parameter.detach() for parameter in parameters]
    before = [weight.clone() for weight in weights]
    torch._foreach_add_(weights, uphill(gradients, radius))
    try:
        yield
    finally:
        torch._foreach_copy_(weights, before)


class DFGPM(Flat):
    """DFGP (Yang et al., 2023): flat minima and mixup, with GPM's projection."""

    name = "dfgpm"


class DFSGP(Flat, SGP):
    """DFGP (Yang et al., 2023): flat minima and mixup, with SGP's projection."""

    name = "dfsgp"


class DFTRGP(Flat, TRGP):
    """DFGP (Yang et al., 2023): flat minima and mixup, with TRGP's projection and scale matrices."""

    name = "dftrgp"


class DFROGO(Flat, ROGO):
    """DFGP (Yang et al., 2023): flat minima and mixup, with ROGO's projection and relaxed directions."""

    name = "dfrogo"
