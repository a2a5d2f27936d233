"""Restricted orthogonal gradient projection, ROGO (Yang et al., 2023): part of the memory is relaxed while a task trains."""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor

from remnant.data import Split
from remnant.memory import task_inputs
from remnant.models import Network
from remnant.options import Positive, each_layer, number, whole

from .gpm import Forward
from .parts.every_layer import for_every_layer
from .parts.own_scales import OwnScales, scale_name
from .parts.scaled import ScaledLayer, Scaling

PerLayer = Annotated[float | Mapping[str, float], each_layer(number(0, 1))]


class ROGO(OwnScales):
    """Steps as GPM does, through weights W_eff = W + W·S·(Q − I)·Sᵀ, where S are directions of the memory that are relaxed.

    Q starts at I, is trained with W under the penalty `stiffness`·‖Q − I‖², and is folded into W when the task ends. So no
    parameter belongs to a task, and old tasks move by what Q has changed.

    S is empty when a task starts. It grows at most `most` times, after an epoch whose learning rate has fallen to `relax_at`:
    then the directions U that hold the share `relax_energy` of the task's inputs are found, S gains the directions u of the
    memory with ‖U·Uᵀ·u‖ ≥ `alike`, and the learning rate starts again. `by_gradient` repeats what the public code does,
    which takes U from the gradient of `relax_samples` examples and not from their inputs.
    """

    name = "rogo"
    relaxed: dict[str, Tensor]  # layer → 1 for each direction of the memory that is in S, and 0 for the others
    images: dict[str, Tensor]  # layer → W·M
    relaxations: int

    def __init__(
        self,
        network: Network,
        *,
        stiffness: Annotated[float, number(0, 1000)] = 1.0,
        most: Annotated[int, whole()] = 2,
        relax_at: Annotated[float, number(0, 10)] = 5e-4,
        relax_energy: PerLayer = 0.99,
        alike: PerLayer = 0.9,
        relax_samples: Positive = 125,
        by_gradient: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(network, **options)
        self.stiffness, self.most, self.relax_at = stiffness, most, relax_at
        self.relax_samples, self.by_gradient = relax_samples, by_gradient
        self.relax_energy = for_every_layer(relax_energy, self.layers, "relax_energy")
        self.alike = for_every_layer(alike, self.layers, "alike")
        self.keep("relaxed", {}, per_step=False, counted=False)
        self.keep("images", {}, per_step=False, counted=False)
        self.keep("relaxations", 0)
        self.refresh()

    def start(self, task: int) -> None:
        self.relaxations = 0
        ranks = {name: self.basis(name).shape[1] for name in self.layers}
        self.relaxed = {name: torch.zeros(rank, device=self.device) for name, rank in ranks.items() if rank}
        self.images = {name: self.layers[name].image(self.basis(name)) for name in self.relaxed}
        for name in self.relaxed:
            self.scales.add(scale_name(task, name), ranks[name])
        super().start(task)

    def refresh(self) -> None:
        # A captured step needs the same tensors every time, so Q has the size of the memory; outside of S it stays at I.
        names = {name: scale_name(self.task, name) for name in self.relaxed}
        self.scaling = {n: Scaling(self.basis(n), self.images[n], [self.scales[key]]) for n, key in names.items()}

    def scalings(self, task: int) -> dict[ScaledLayer, Scaling]:
        return {self.layers[name]: scaling for name, scaling in self.scaling.items()}

    def gradients(self, loss: Tensor) -> dict[Tensor, Tensor]:
        """Adds the penalty's gradient, and moves Q inside S alone."""
        gradients = super().gradients(loss)
        for name, inside in self.relaxed.items():
            (D,) = self.scaling[name].matrices
            gradients[D] = (gradients[D] + 2 * self.stiffness * D.detach()) * inside[:, None] * inside
        return gradients

    def on_epoch_end(self) -> bool:
        super().on_epoch_end()
        if not self.relaxed or not self.tasks or self.relaxations == self.most or float(self.lr) > self.relax_at:
            return False
        self.relax()
        self.relaxations += 1
        return True

    def relax(self) -> None:
        """S gains the directions of the memory that the task uses."""
        some = self.random_examples(self.tasks[self.task].train, self.relax_samples)
        for name, gram in self.grams(*some).items():
            energies, vectors = torch.linalg.eigh(gram)
            energies, vectors = energies.flip(0), vectors.flip(1)
            count = int((energies.cumsum(0) < self.relax_energy[name] * energies.sum()).sum()) + 1
            length = (vectors[:, :count].mT @ self.basis(name).to(vectors)).norm(dim=0)  # ‖U·Uᵀ·u‖
            self.relaxed[name].masked_fill_(length >= self.alike[name], 1)

    def grams(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Returns XᵀX for the inputs X of each layer that has a memory, or with `by_gradient` gᵀg for its gradient g."""
        if not self.by_gradient:
            found = task_inputs(self.memory, [x], forward=self.forward(self.task))
            return {inputs.layer: inputs.gram for inputs in found if inputs.layer in self.relaxed}
        self.network.eval()
        gradients = super().gradients(self.loss(x, y))
        matrices = {name: self.layers[name].gradient(gradients) for name in self.relaxed}
        return {name: (g.mT @ g).double() for name, g in matrices.items()}

    @torch.no_grad()
    def finish(self, task: int, train: Split, forward: Forward | None = None) -> None:
        super().finish(task, train, forward)
        for name, scaling in self.scaling.items():
            change = scaling.multiplied(scaling.image) @ scaling.basis.mT
            for parameter, part in self.layers[name].by_parameter(change).items():
                parameter.add_(part)
            scaling.matrices[0].zero_()  # the memory may run the network of this task again
        self.relaxed, self.images = {}, {}
        self.scales.clear()
        self.refresh()
        self.projector.begin_task()  # the next task starts from the folded weights
