"""Orthogonal weight modification (Zeng et al., 2019): one projector per layer, updated by recursive least squares."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from remnant.memory import LayerView, by_layer, views_of
from remnant.models import Network
from remnant.options import each_layer, number

from .parts.fixed_norm import FixedNorm


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
                kind = LinearProjector if isinstance(module, nn.Linear) else Projector
                for view in views_of(module) or []:
                    self.layers[name] = module, kind(view)
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


class Projector:
    """P ← P − k·kᵀ/(α + x̄ᵀ·k) with k = P·x̄: recursive least squares. Starting from I, P is (I + Σ x̄·x̄ᵀ/α)⁻¹.

    P is in float64. In float32, after some thousand updates with α falling to 1e-5, P had negative eigenvalues and removed
    several times too little. A bias is the weight of an input that is always 1 and adds a row and a column to P.
    """

    def __init__(self, view: LayerView) -> None:
        self.view = view
        self.parameters = [view.weight] if view.bias is None else [view.weight, view.bias]
        eye = torch.eye(view.inputs + (view.bias is not None), dtype=torch.float64, device=view.weight.device)
        self.P = eye.repeat(view.groups, 1, 1)

    def update(self, x: Tensor, alpha: Tensor) -> None:
        """Updates P with a batch of the layer's input."""
        # Rows are linear in the input, so the mean image has the batch's mean patch.
        rows = self.view.rows(x.mean(0, keepdim=True, dtype=torch.float64))
        chunks = [rows.unsqueeze(0)] if isinstance(rows, Tensor) else list(rows)
        self._shrink(self._with_one(torch.cat(chunks, dim=1).mean(1, keepdim=True)), alpha)

    def wanted(self, output: Tensor) -> list[Tensor]:
        """The tensors whose gradients `project` takes, given the layer's output."""
        return self.parameters

    def project(self, gradients: list[Tensor]) -> list[Tensor]:
        """∇W·P, split into weight and bias."""
        matrix = self.view.matrix(gradients[0])
        columns = [bias.reshape(*matrix.shape[:2], 1) for bias in gradients[1:]]
        return self._split((torch.cat([matrix, *columns], dim=2).double() @ self.P).to(matrix.dtype))

    def _shrink(self, mean: Tensor, alpha: Tensor) -> None:
        """The formula, for x̄ᵀ of shape (groups, 1, n)."""
        k = self.P @ mean.mT
        self.P.addcmul_(k / (mean @ k + alpha), k.mT, value=-1)

    def _with_one(self, rows: Tensor) -> Tensor:
        return rows if self.view.bias is None else F.pad(rows, (0, 1), value=1.0)

    def _split(self, matrix: Tensor) -> list[Tensor]:
        inputs = self.view.inputs
        return [self.view.tensor(matrix[:, :, :inputs]), *(b.flatten() for b in matrix[:, :, inputs:].unbind(2))]


class LinearProjector(Projector):
    """The same for a linear layer with fewer rows than outputs: ∇W·P = δᵀ·(X·P), and X·P is the smaller product."""

    def update(self, x: Tensor, alpha: Tensor) -> None:
        rows = self._with_one(x.reshape(-1, self.view.inputs).double().unsqueeze(0))
        self._shrink(rows.mean(1, keepdim=True), alpha)
        self._rows = (rows @ self.P).to(x.dtype)

    def wanted(self, output: Tensor) -> list[Tensor]:
        return [output]

    def project(self, gradients: list[Tensor]) -> list[Tensor]:
        delta = gradients[0].reshape(1, -1, self.view.outputs)
        return self._split(delta.mT @ self._rows)
