"""CODE-CL (Apolinario, Choudhary & Roy, 2025): conceptors protect directions softly, and shared ones are freed for a task."""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from remnant.memory import TaskInputs, grow_by, parse_threshold, task_inputs
from remnant.models import Network
from remnant.options import Positive, Share, choice, number, per_layer, threshold, whole

from .gpm import NORMS
from .parts.conceptors import both, eigenpairs, odds, wide_enough
from .parts.own_scales import OwnScales, scale_name
from .parts.scaled import ScaledLayer, Scaling


class CodeCL(OwnScales):
    """Steps along ∇W·(I − C), where C joins the conceptors C_t = R·(R + a⁻²·I)⁻¹ of all earlier tasks by "or".

    R is the mean of x·xᵀ over the inputs of random `samples` of a task, and a the `aperture`, raised until
    ‖X·C_t‖ ≥ `threshold`·‖X‖. Eigenvalues of C below `floor` are set to 0. C is kept as its eigenvectors and eigenvalues.

    Before task t, its inputs give C_t. In layers with more than `free` inputs where tr(C and C_t) > `alike`·tr C, the `free`
    strongest directions U of "C and C_t" are freed: the task computes with W + W·U·(A − I)·Uᵀ and trains its own A, which
    starts at I. U and A belong to the task and count as capacity. Only C holds W·U, so what a task has freed may still change
    a little. `random_start` repeats a fault of the public code, where A starts as a random matrix.
    """

    name = "code-cl"
    freed: dict[str, dict[str, Tensor]]  # task → layer → U

    def __init__(
        self,
        network: Network,
        *,
        aperture: Annotated[float, number(0, 1e6, above=True)] = 6.0,
        threshold: Annotated[Any, threshold()] = 0.95,
        floor: Share = 0.2,
        free: Annotated[int, whole()] = 80,
        alike: Annotated[float, number(0, 1)] = 0.5,
        random_start: bool = False,
        samples: Positive = 125,
        layer_samples: Annotated[Mapping[str, int] | None, per_layer(whole(1))] = None,
        task_norms: Annotated[str, choice(NORMS)] = "frozen",
        label_smoothing: Share = 0.0,
        lr: Annotated[float, number(0, 10, above=True)] = 0.01,
        anneal: bool = False,
    ) -> None:
        options: dict[str, Any] = {"samples": samples, "layer_samples": layer_samples, "task_norms": task_norms}
        super().__init__(network, threshold=threshold, label_smoothing=label_smoothing, lr=lr, anneal=anneal, **options)
        self.aperture, self.floor, self.free, self.alike = aperture, floor, free, alike
        self.random_start = random_start
        self.energy_share = parse_threshold(threshold, self.memory.subspaces).of  # (layer, task) → ε
        self.keep("freed", {}, per_step=False)
        grow_by(self.memory, self.join)

    def odds_of(self, inputs: TaskInputs, threshold: float) -> Tensor:
        """Returns the odds a²·R of a task's conceptor."""
        R = inputs.gram / max(1, inputs.rows)
        return R * wide_enough(R, self.aperture, threshold) ** 2

    def join(self, inputs: TaskInputs, threshold: float) -> None:
        """C ← C or C_t."""
        old = odds(inputs.subspace.basis, inputs.subspace.weights)
        values, vectors = eigenpairs(old + self.odds_of(inputs, threshold))
        kept = values >= self.floor
        like = inputs.subspace.basis
        inputs.subspace.load({"basis": vectors[:, kept].to(like), "weights": values[kept].to(like)})

    def start(self, task: int) -> None:
        self.freed[str(task)] = self.shared_directions(task) if len(self.memory) and self.tasks else {}
        for layer, U in self.freed[str(task)].items():
            self.scales.add(scale_name(task, layer), U.shape[1])
            if self.random_start:
                A = self.scales[scale_name(task, layer)]
                with torch.no_grad():
                    nn.init.kaiming_uniform_(A, a=math.sqrt(5)).sub_(torch.eye(len(A), device=self.device))
        super().start(task)

    def shared_directions(self, task: int) -> dict[str, Tensor]:
        """Returns U of the layers in which the task's inputs resemble the inputs of earlier tasks."""
        x, _ = self.random_examples(self.tasks[task].train, self.samples)
        found = {}
        for inputs in task_inputs(self.memory, [x], layer_samples=self.layer_samples, forward=self.forward(task)):
            if inputs.layer in self.layers and 0 < self.free < inputs.subspace.capacity and inputs.subspace.rank:
                values, vectors = eigenpairs(self.odds_of(inputs, self.energy_share(inputs.layer, task)))
                kept = values >= self.floor
                old = odds(inputs.subspace.basis, inputs.subspace.weights)
                shares, directions = eigenpairs(both(old, odds(vectors[:, kept], values[kept])))
                if float(shares.sum()) > self.alike * float(inputs.subspace.weights.sum()):
                    found[inputs.layer] = directions[:, : self.free].to(self.layers[inputs.layer].view.weight)
        return found

    def refresh(self) -> None:
        own = [*self.scales.values(), *(U for layers in self.freed.values() for U in layers.values())]
        self.capacity = 1 + sum(tensor.numel() for tensor in own) / self.base_size

    def scalings(self, task: int) -> dict[ScaledLayer, Scaling]:
        found = {}
        for name, U in self.freed.get(str(task), {}).items():
            layer = self.layers[name]
            found[layer] = Scaling(U, layer.weights @ U, [self.scales[scale_name(task, name)]])
        return found

    def projected(self, loss: Callable[[], Tensor], rows: int) -> tuple[Tensor, dict[Tensor, Tensor]]:
        """Projects whole gradients, because gradients through W·U do not pass the layers' inputs."""
        value = loss()
        return value.detach(), self.projector.project(self.gradients(value))

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(U.nbytes for layers in self.freed.values() for U in layers.values())
