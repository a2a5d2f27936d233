"""Adam-NSCL (Wang et al., 2021): an optimizer's steps are projected onto the null space of all earlier inputs."""

from collections.abc import Mapping
from math import sqrt
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from remnant.data import Split
from remnant.memory import TaskInputs, grow_by, is_norm
from remnant.models import Network
from remnant.options import Positive, Share, number, per_layer, whole

from .base import Method
from .ewc import EWC
from .gpm import Forward, GradientProjection
from .parts.anchor import Strength


class AdamNSCL(EWC, GradientProjection):
    """Each step of the optimizer (Adam in the recipes) becomes ΔW·U₂·U₂ᵀ: it loses its part outside of the null space U₂.

    U₂ are the eigenvectors of Σ_t X_tᵀ·X_t whose eigenvalues are at most `tolerance` times the smallest one, for the inputs
    X_t of random `samples` of each task. The sum is kept, n² numbers for each layer. All tasks train the norms, tied to their
    last values by EWC with `strength`. `normed` repeats the public code, which divides U₂·U₂ᵀ by its norm √(rank of U₂), and
    so takes smaller steps. The public code also uses the mean inputs of batches in place of the inputs.
    """

    name = "adam-nscl"
    freezes_norms = False
    grams: dict[str, Tensor]  # layer → Σ_t X_tᵀ·X_t

    def __init__(
        self,
        network: Network,
        *,
        tolerance: Annotated[float, number(1, 1e12)] = 10.0,
        strength: Strength = 100.0,
        samples: Positive = 1000,
        layer_samples: Annotated[Mapping[str, int] | None, per_layer(whole(1))] = None,
        normed: bool = False,
        label_smoothing: Share = 0.0,
        lr: Annotated[float, number(0, 10, above=True)] = 1e-4,
        anneal: bool = False,
    ) -> None:
        options: dict[str, Any] = {"samples": samples, "layer_samples": layer_samples, "lr": lr, "anneal": anneal}
        super().__init__(network, strength=strength, task_norms="free", label_smoothing=label_smoothing, **options)
        if grouped := [name for name, each in self.memory.subspaces.items() if isinstance(each, list)]:
            raise ValueError(f"Adam-NSCL does not support grouped layers such as {grouped[0]!r}.")
        self.tolerance, self.normed = tolerance, normed
        self.keep("grams", {}, per_step=False)
        grow_by(self.memory, self.renew)

    def shared_parameters(self) -> dict[str, nn.Parameter]:
        """Returns the norms' parameters, which are what EWC ties."""
        norms = {p for module in self.network.modules() if is_norm(module) for p in module.parameters()}
        return {name: p for name, p in self.network.named_parameters() if p in norms and p.requires_grad}

    def pulled(self, gradients: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        return super().pulled(gradients) if self.shared else gradients

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        return Method.step(self, x, y)  # the optimizer sees the whole gradient

    @torch.no_grad()
    def apply_gradients(self, gradients: dict[Tensor, Tensor]) -> None:
        before = {p: p.detach().clone() for p in self.shares} if self.normed else {}
        Method.apply_gradients(self, gradients)
        self.projector.restore()
        for parameter, old in before.items():
            parameter.copy_(torch.lerp(old, parameter, self.shares[parameter]))

    def refresh(self) -> None:
        super().refresh()
        self.shares: dict[Tensor, float] = {}  # 1/√(rank of U₂) for the parameters of each layer with a memory
        for name in self.grams:
            subspace = self.subspace(name)
            share = 1 / sqrt(max(1, subspace.capacity - subspace.rank))
            self.shares |= dict.fromkeys(self.network.get_submodule(name).parameters(), share)

    def finish(self, task: int, train: Split, forward: Forward | None = None) -> None:
        GradientProjection.finish(self, task, train, forward)
        if self.shared:
            EWC.finish(self, task, train)

    def renew(self, inputs: TaskInputs, threshold: float) -> None:
        """Remembers everything outside of U₂."""
        total = inputs.gram + self.grams.get(inputs.layer, 0)
        self.grams[inputs.layer] = total
        values, vectors = torch.linalg.eigh(total)
        rounding = len(values) * torch.finfo(values.dtype).eps * values[-1]
        used = values > self.tolerance * torch.maximum(values[0], rounding)
        inputs.subspace.load({"basis": vectors[:, used].to(inputs.subspace.basis)})

    @property
    def nbytes(self) -> int:
        kept = [*self.grams.values(), *self.importance, *self.last]
        return super().nbytes + sum(tensor.nbytes for tensor in kept)
