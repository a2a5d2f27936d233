"""Orthogonal weight modification (Zeng et al., 2019): one projector per layer, updated by recursive least squares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from remnant.memory import by_layer, views_of
from remnant.models import Network
from remnant.options import each_layer, number

from .parts.fixed_norm import FixedNorm
from .parts.projector import Projector, projector_of


class OWM(FixedNorm):
    """Steps along ∇W·P, where P shrinks with every batch along the mean of the layer's inputs (see `Projector`).

    P is the identity before the first task and is never reset. As in the original, a step updates P with its own batch before
    it uses P, so within a task, too, less and less is learnt along inputs that were seen. A shared head is a layer like the
    others; heads of single tasks are free.

    A convolution's mean input is its mean patch over the batch and all positions: one update per step. The original takes
    every second patch of the batch's mean image, one after another, and so protects convolutions more at the same α.

    Args:
        alpha_start: α at the start of a task, as one number or per layer-name pattern. The smaller α, the less remains of a
            direction that was seen. α scales with the square of the input.
        alpha_decay: d in α·dˢ, where s is the fraction of the task's steps that are done.
    """

    name = "owm"
    projectors: dict[str, Tensor]  # P by layer
    alpha: Tensor
    fall: Tensor  # the factor of α from one step to the next

    def __init__(
        self,
        network: Network,
        *,
        alpha_start: Annotated[float | Mapping[str, float], each_layer(number(0, 1e9, above=True))] = 10.0,
        alpha_decay: Annotated[float | Mapping[str, float], each_layer(number(0, 1, above=True))] = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(network, **options)
        self.layers: dict[str, tuple[nn.Module, Projector]] = {}
        for name, module in network.named_modules():
            if not (network.multi_head and name.startswith("heads.")):
                for view in views_of(module) or []:
                    self.layers[name] = module, projector_of(module, view)
        self.alpha_start = self._per_layer(alpha_start, "alpha_start")
        self.alpha_decay = self._per_layer(alpha_decay, "alpha_decay")
        self.keep("projectors", {name: projector.P for name, (_, projector) in self.layers.items()})
        self.keep("alpha", self.alpha_start.clone(), counted=False)
        self.keep("fall", torch.ones_like(self.alpha), counted=False)

    def on_epoch_start(self, epoch: int, epochs: int, steps: int) -> None:
        self.alpha.copy_(self.alpha_start * self.alpha_decay ** (epoch / epochs))
        self.fall.copy_(self.alpha_decay ** (1 / (epochs * steps)))

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        with self._updating_projectors() as outputs:
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
        """The parameters without a projector: the head of a single task, and norms during the first task."""
        covered = {id(p) for _, projector in self.layers.values() for p in projector.parameters}
        return [p for p in self.parameters if id(p) not in covered]

    @contextmanager
    def _updating_projectors(self) -> Iterator[dict[str, Tensor]]:
        """Updates every projector with its layer's input in a forward pass, and yields the layers' outputs."""
        outputs: dict[str, Tensor] = {}

        def watch(name: str, alpha: Tensor) -> RemovableHandle:
            module, projector = self.layers[name]

            @torch.no_grad()
            def update(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
                outputs[name] = output
                projector.update(inputs[0], alpha)

            return module.register_forward_hook(update)

        handles = [watch(name, alpha) for name, alpha in zip(self.layers, self.alpha, strict=True)]
        try:
            yield outputs
        finally:
            for handle in handles:
                handle.remove()

    def _per_layer(self, value: float | Mapping[str, float], option: str) -> Tensor:
        found = by_layer(value if isinstance(value, Mapping) else {"*": value}, self.layers, option)
        for name in self.layers:
            if name not in found:
                raise ValueError(f"No pattern of {option} matches layer {name!r}. Add one, or '*' for all the others.")
        return torch.tensor([found[name] for name in self.layers], dtype=torch.float64, device=self.device)
