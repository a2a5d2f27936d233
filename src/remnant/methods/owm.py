"""Orthogonal weight modification (Zeng et al., 2019): one projector per layer, updated by recursive least squares."""

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant.memory import LayerView, views_of
from remnant.models import Network
from remnant.options import each_layer, number

from .base import Method
from .parts.every_layer import for_every_layer

Start = Annotated[float | Mapping[str, float], each_layer(number(0, 1e9, above=True))]
Decay = Annotated[float | Mapping[str, float], each_layer(number(0, 1, above=True))]


class OWM(Method):
    """Steps along ∇W·P, where P shrinks with every batch along the mean of the layer's inputs (see `Projector`).

    P is the identity before the first task and is never reset. As in the original, a step updates P with its own batch before
    it uses P, so even within a task less and less is learnt along inputs that were seen. A shared head is a layer like the
    others; heads of single tasks are free. A convolution's mean input is its mean patch over the batch and all positions. The
    original updates P with every second patch of the batch's mean image, and so protects convolutions more.

    α is `alpha_start`·`alpha_decay`ˢ, where s is the fraction of the task's steps that are done; both may differ by layer-name
    pattern. The smaller α, the less remains of a direction that was seen. α scales with the square of the input.
    """

    name = "owm"
    freezes_norms = True
    projectors: dict[str, Tensor]  # P by layer
    alpha: Tensor
    fall: Tensor  # the factor of α from one step to the next

    def __init__(
        self, network: Network, *, alpha_start: Start = 10.0, alpha_decay: Decay = 1.0, **options: Any
    ) -> None:
        super().__init__(network, **options)
        self.layers: dict[str, tuple[nn.Module, Projector]] = {}
        for name, module in network.named_modules():
            if not (network.multi_head and name.startswith("heads.")):
                for view in views_of(module) or []:
                    self.layers[name] = module, Projector(view, by_rows=isinstance(module, nn.Linear))
        self.alpha_start = self._per_layer(alpha_start, "alpha_start")
        self.alpha_decay = self._per_layer(alpha_decay, "alpha_decay")
        self.keep("projectors", {name: projector.P for name, (_, projector) in self.layers.items()})
        self.keep("alpha", self.alpha_start.clone(), counted=False)
        self.keep("fall", torch.ones_like(self.alpha), counted=False)

    def on_epoch_start(self, epoch: int, epochs: int, steps: int) -> None:
        self.alpha.copy_(self.alpha_start * self.alpha_decay ** (epoch / epochs))
        self.fall.copy_(self.alpha_decay ** (1 / (epochs * steps)))

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        outputs: dict[Projector, Tensor] = {}

        @torch.no_grad()
        def update(projector: Projector, alpha: Tensor, _: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
            outputs[projector] = output
            projector.update(inputs[0], alpha)

        with ExitStack() as hooks:
            for (module, projector), alpha in zip(self.layers.values(), self.alpha, strict=True):
                hooks.enter_context(module.register_forward_hook(partial(update, projector, alpha)))
            loss = self.loss(x, y)
        wanted = {projector: projector.differentiated(output) for projector, output in outputs.items()}
        free = self.free
        found = iter(torch.autograd.grad(loss, [*free, *(tensor for tensors in wanted.values() for tensor in tensors)]))
        gradients: dict[Tensor, Tensor] = {parameter: next(found) for parameter in free}
        for projector, tensors in wanted.items():
            gradients |= projector.project([next(found) for _ in tensors])
        self.apply_gradients(gradients)
        self.alpha.mul_(self.fall)
        return loss.detach()

    @property
    def free(self) -> list[nn.Parameter]:
        """The parameters without a projector: the head of a single task, and norms during the first task."""
        covered = {p for _, projector in self.layers.values() for p in projector.parameters}
        return [p for p in self.parameters if p not in covered]

    def _per_layer(self, value: float | Mapping[str, float], option: str) -> Tensor:
        found = for_every_layer(value, self.layers, option)
        return torch.tensor([found[name] for name in self.layers], dtype=torch.float64, device=self.device)


class Projector:
    """P ← P − k·kᵀ/(α + x̄ᵀ·k) with k = P·x̄: recursive least squares. Starting from I, P is (I + Σ x̄·x̄ᵀ/α)⁻¹.

    P is in float64. In float32, after some thousand updates with α falling to 1e-5, P had negative eigenvalues and removed
    several times less than it should. A bias is the weight of an input that is always 1 and adds a row and a column to P.

    With `by_rows`, for linear layers, ∇W·P is computed as δᵀ·(X·P): a batch mostly has fewer rows than a layer has outputs.
    """

    def __init__(self, view: LayerView, *, by_rows: bool) -> None:
        self.view, self.by_rows = view, by_rows
        self.parameters = [view.weight] if view.bias is None else [view.weight, view.bias]
        eye = torch.eye(view.inputs + (view.bias is not None), dtype=torch.float64, device=view.weight.device)
        self.P = eye.repeat(view.groups, 1, 1)

    def update(self, x: Tensor, alpha: Tensor) -> None:
        """Updates P with a batch of the layer's input."""
        if self.by_rows:
            rows = self._with_one(x.reshape(1, -1, self.view.inputs).double())
            mean = rows.mean(1, keepdim=True)
        else:  # patches are linear in the input, so the mean image has the batch's mean patch
            patches = self.view.rows(x.mean(0, keepdim=True, dtype=torch.float64))
            chunks = [patches.unsqueeze(0)] if isinstance(patches, Tensor) else list(patches)
            mean = self._with_one(torch.cat(chunks, dim=1).mean(1, keepdim=True))
        k = self.P @ mean.mT
        self.P.addcmul_(k / (mean @ k + alpha), k.mT, value=-1)
        if self.by_rows:
            self.rows = (rows @ self.P).to(x.dtype)

    def _with_one(self, rows: Tensor) -> Tensor:
        return rows if self.view.bias is None else F.pad(rows, (0, 1), value=1.0)

    def differentiated(self, output: Tensor) -> list[Tensor]:
        """The tensors whose gradients `project` takes, given the layer's output."""
        return [output] if self.by_rows else self.parameters

    def project(self, gradients: list[Tensor]) -> dict[Tensor, Tensor]:
        """∇W·P, by parameter."""
        if self.by_rows:
            projected = gradients[0].reshape(1, -1, self.view.outputs).mT @ self.rows
        else:
            matrix = self.view.matrix(gradients[0])
            columns = [bias.reshape(*matrix.shape[:2], 1) for bias in gradients[1:]]
            projected = (torch.cat([matrix, *columns], dim=2).double() @ self.P).to(matrix.dtype)
        weight, bias = projected.tensor_split([self.view.inputs], dim=2)
        return dict(zip(self.parameters, [self.view.tensor(weight), bias.flatten()], strict=False))
