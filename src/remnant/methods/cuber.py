"""CUBER (Lin, Yang, Fan & Zhang, 2022): where a new task agrees with an old one, it may change what the old one uses."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from remnant.data import Split
from remnant.models import Network
from remnant.options import number

from .gpm import Forward
from .parts.gradients import TINY
from .parts.scaled import ScaledLayer, Scaling
from .trgp import TRGP, Trusted


class Gate(NamedTuple):
    """What the trusted tasks j of a layer may open."""

    layer: ScaledLayer
    M: Tensor  # all remembered directions
    always: Tensor  # 1 for the directions that other tasks use, which stay closed
    members: Tensor  # trusted tasks × directions: 1 if the direction is in B_j
    agreed: Tensor  # trusted tasks × (outputs·inputs): G_j/‖G_j‖


class CUBER(TRGP):
    """TRGP that lets W move inside B_j where the old task j would gain: backward transfer.

    G_j is the gradient of task j at its end, on `trust_samples` examples. If a layer trusts task j and the first gradient g of
    the new task has ⟨G_j, g⟩ > `agreement`·‖G_j‖·‖g‖, then steps may move the directions of B_j that no other task uses, and
    `pull`·‖(W − W₀)·B_j‖ is added to the loss, where W₀ started the task. As soon as the gradient of a step fails the test,
    task j is closed in that layer for the rest of the task, and what follows is TRGP. Old tasks change where they are open.
    The paper's main text does not give `pull`.
    """

    name = "cuber"
    plain_sgd_only = True
    last: dict[str, dict[str, Tensor]]  # task → layer → G_j
    before: dict[str, Tensor]  # layer → W₀
    open: dict[str, Tensor]  # layer → 1 for each trusted task that is open, 0 for those that are closed

    def __init__(
        self,
        network: Network,
        *,
        agreement: Annotated[float, number(-1, 1)] = 0.0,
        pull: Annotated[float, number(0, 1e6)] = 1.0,
        **options: Any,
    ) -> None:
        self.gates: dict[str, Gate] = {}
        self.agreement, self.pull = agreement, pull
        super().__init__(network, **options)
        self.keep("last", {}, per_step=False)
        self.keep("before", {}, per_step=False, counted=False)
        self.keep("open", {}, counted=False)

    def trusted_tasks(self, task: int, gradients: dict[str, Tensor]) -> Trusted:
        trusted = super().trusted_tasks(task, gradients)
        self.open, self.before = {}, {}
        for name, tasks in trusted.items():
            opened = self.agree(self.last_directions(name, tasks), gradients[name])
            if bool(opened.any()):
                self.open[name], self.before[name] = opened, self.layers[name].weights.detach()
        return trusted

    def last_directions(self, name: str, tasks: list[int]) -> Tensor:
        """Returns G_j/‖G_j‖ of a layer, one row for each of the tasks."""
        G = torch.stack([self.last[str(old)][name].flatten() for old in tasks])
        return G / G.norm(dim=1, keepdim=True).clamp(min=TINY)

    def agree(self, agreed: Tensor, g: Tensor) -> Tensor:
        """Returns 1 for each task with ⟨G_j, g⟩ above `agreement`·‖G_j‖·‖g‖, and 0 for the others."""
        agree: Tensor = (agreed @ g.flatten() > self.agreement * g.norm()).to(g)
        return agree

    def refresh(self) -> None:
        super().refresh()
        self.gates = {name: self.gate(name) for name in vars(self).get("open", {})}

    def gate(self, name: str) -> Gate:
        M = self.basis(name)
        uses = M.new_zeros(self.task, M.shape[1])
        for old in range(self.task):
            uses[old, self.chosen[str(old)][name]] = 1
        tasks = self.trusted[str(self.task)][name]
        others = [old for old in range(self.task) if old not in tasks]
        always = uses[others].amax(0) if others else M.new_zeros(M.shape[1])
        return Gate(self.layers[name], M, always, uses[tasks], self.last_directions(name, tasks))

    def scalings(self, task: int) -> dict[ScaledLayer, Scaling]:
        """W·B_j still changes in layers that are open."""
        scalings, live = super().scalings(task), {gate.layer for gate in self.gates.values() if task == self.task}
        return {
            layer: s._replace(image=layer.weights @ s.basis) if layer in live else s for layer, s in scalings.items()
        }

    def projected(self, loss: Callable[[], Tensor], rows: int) -> tuple[Tensor, dict[Tensor, Tensor]]:
        if not self.gates:
            return super().projected(loss, rows)
        value = loss()
        gradients = self.gradients(value)
        whole = {name: gate.layer.gradient(gradients) for name, gate in self.gates.items()}
        gradients = self.projector.project(gradients)
        for name, gate in self.gates.items():
            for p, part in gate.layer.by_parameter(self.opened(name, gate, whole[name])).items():
                gradients[p] = gradients[p] + part
        return value.detach(), gradients

    @torch.no_grad()
    def opened(self, name: str, gate: Gate, g: Tensor) -> Tensor:
        """Closes the tasks that no longer agree. Returns the gradient, with the pull, inside the directions left open."""
        is_open = self.open[name].mul_(self.agree(gate.agreed, g))
        closed = torch.maximum(gate.always, (gate.members * (1 - is_open)[:, None]).amax(0))
        moved = ((gate.layer.weights - self.before[name]) @ gate.M) * gate.members[:, None]
        lengths = moved.norm(dim=(1, 2)).clamp(min=TINY)
        pulled = ((self.pull * is_open / lengths)[:, None, None] * moved).sum(0)
        inside: Tensor = (g @ gate.M + pulled) * (1 - closed)
        return inside @ gate.M.mT

    @torch.no_grad()
    def on_epoch_end(self) -> None:
        """Undoes rounding inside the memory, in the layers where nothing was opened."""
        moved = {p: p.detach().clone() for gate in self.gates.values() for p in gate.layer.parameters}
        super().on_epoch_end()
        for parameter, value in moved.items():
            parameter.copy_(value)

    def finish(self, task: int, train: Split, forward: Forward | None = None) -> None:
        self.last[str(task)] = self.gradients_on(train)
        if self.gates:
            self.projector.begin_task()  # W·M has changed where tasks were open
        super().finish(task, train, forward)

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(G.nbytes for layers in self.last.values() for G in layers.values())
