"""Orthogonal weight modification (Zeng et al., 2019): a projector per layer, kept by recursive least squares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from remnant.memory import by_layer, views_of
from remnant.models import Network

from .parts.fixed_norm import FixedNorm
from .parts.projector import Projector, projector_of


class OWM(FixedNorm):
    """Steps along ∇W·P, where P shrinks with every batch along the mean of the layer's inputs (see `Projector`).

    P is the identity before the first task and never starts again. A step takes its own batch into P before it uses it,
    as the original does: within a task, too, ever less is learnt along inputs that were seen. A shared head is a layer
    like the others; heads of their own are free.

    A convolution's mean input is its mean patch, over the batch and all positions: one update a step. The original takes
    every second patch of the batch's mean image, one after another, and so holds convolutions harder at the same α.

    Args:
        alpha_start, alpha_decay: α = alpha_start·alpha_decayˢ, with s the share of a task's steps that are done, by pattern
            of layer names. The smaller α, the less is left of a direction once it was seen; α scales as the input squared.
    """

    name = "owm"

    def __init__(
        self, network: Network, *, lr: float, alpha_start: Mapping[str, float], alpha_decay: Mapping[str, float]
    ) -> None:
        super().__init__(network, lr=lr)
        self.layers: dict[str, tuple[nn.Module, Projector]] = {}
        for name, module in network.named_modules():
            if not (network.multi_head and name.startswith("heads.")):
                for view in views_of(module) or []:
                    self.layers[name] = module, projector_of(module, view)
        self.alpha_start = self._by_layer(alpha_start, "alpha_start")
        self.alpha_decay = self._by_layer(alpha_decay, "alpha_decay")
        self.alpha = self.alpha_start.clone()
        self.fall = torch.ones_like(self.alpha)  # of α, from one step to the next

    def on_epoch_start(self, epoch: int, epochs: int, steps: int) -> None:
        self.alpha.copy_(self.alpha_start * self.alpha_decay ** (epoch / epochs))
        self.fall.copy_(self.alpha_decay ** (1 / (epochs * steps)))

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        with self._seeing() as outputs:
            loss = self.loss(x, y)
        projectors = [(projector, projector.wanted(outputs[name])) for name, (_, projector) in self.layers.items()]
        found = iter(torch.autograd.grad(loss, [*self.free, *(tensor for _, some in projectors for tensor in some)]))
        gradients: dict[Tensor, Tensor] = {parameter: next(found) for parameter in self.free}
        with torch.no_grad():
            for projector, wanted in projectors:
                projected = projector.project([next(found) for _ in wanted])
                gradients.update(zip(projector.parameters, projected, strict=True))
        self.apply_gradients([gradients[parameter] for parameter in self.parameters])
        self.alpha.mul_(self.fall)
        return loss.detach()

    @property
    def free(self) -> list[nn.Parameter]:
        """What has no projector: a head of the task's own, and norms while the first task is learnt."""
        covered = {id(p) for _, projector in self.layers.values() for p in projector.parameters}
        return [p for p in self.parameters if id(p) not in covered]

    @contextmanager
    def _seeing(self) -> Iterator[dict[str, Tensor]]:
        """Meanwhile every projector takes in what comes to its layer. Gives what each layer makes of it."""
        outputs: dict[str, Tensor] = {}

        def watch(name: str, alpha: Tensor) -> RemovableHandle:
            module, projector = self.layers[name]

            @torch.no_grad()
            def seen(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
                outputs[name] = output
                projector.see(inputs[0], alpha)

            return module.register_forward_hook(seen)

        handles = [watch(name, alpha) for name, alpha in zip(self.layers, self.alpha, strict=True)]
        try:
            yield outputs
        finally:
            for handle in handles:
                handle.remove()

    @property
    def projectors(self) -> dict[str, Tensor]:
        """P by layer."""
        return {name: projector.P for name, (_, projector) in self.layers.items()}

    @property
    def nbytes(self) -> int:
        return sum(P.nbytes for P in self.projectors.values())

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "projectors": self.projectors, "alpha": self.alpha, "fall": self.fall}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.alpha.copy_(state["alpha"])
        self.fall.copy_(state["fall"])
        for name, P in self.projectors.items():
            P.copy_(state["projectors"][name])

    def tensors(self) -> list[Tensor]:
        return [*super().tensors(), self.alpha, *self.projectors.values()]

    def _by_layer(self, patterns: Mapping[str, float], what: str) -> Tensor:
        found = by_layer(patterns, self.layers, what)
        for name in self.layers:
            if name not in found:
                raise ValueError(f"No pattern of {what} matches layer {name!r}. Add one, or '*' for all the others.")
        return torch.tensor([found[name] for name in self.layers], dtype=torch.float64, device=self.device)
