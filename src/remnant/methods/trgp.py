"""Trust region gradient projection (Lin, Yang, Fan & Zhang, 2022): a task scales what alike tasks have learnt."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from remnant.data import Stream, Task
from remnant.memory import RANK_RULES, DirectionEnergies, parse_threshold
from remnant.models import Network
from remnant.options import Positive, choice, number

from .parts.measured import Forward, Measured
from .parts.scaled import ScaledLayer, ScaleMatrices, Scaling, adding

Trusted = dict[str, list[int]]  # layer → tasks


class TRGP(Measured):
    """Steps as GPM does, through weights W_eff = W + Σ_j W·B_j·(Q_j − I)·B_jᵀ. A task trains its own Q_j with W.

    Before a task, one gradient g on `trust_samples` examples decides per layer which old tasks j it trusts: at most `most`
    of them, with the largest ‖g·B_j‖ above `trust`·‖g‖. B_j are the fewest directions of the memory that hold the share ε of
    the energy of task j's inputs. Test examples need their task, which selects the Q_j, also where all tasks share a head.

    The layers to scale are given by patterns (`scaled`). Four switches, off by default, repeat what the public code does:
    `strongest_unprotected` leaves the strongest new direction of each later task unprotected; `unscaled_inputs` remembers the
    inputs that the network has without Q; `first_layer_decides` trusts no task in any layer unless the first layer does; and
    with `third_trusts_second`, the third task can trust the second only. `task_norms="free"` repeats a fifth.
    """

    name = "trgp"
    ordered = True
    trusted: dict[str, Trusted]  # by task
    chosen: dict[str, dict[str, Tensor]]  # task → layer → which directions of the memory are B_j
    images: dict[str, Tensor]  # layer → W·B of the task at hand

    def __init__(
        self,
        network: Network,
        *,
        trust: Annotated[float, number(0, 10)] = 0.5,
        most: Positive = 2,
        trust_samples: Positive = 300,
        scaled: Sequence[str] = ("*",),
        rank_rule: Annotated[str, choice(RANK_RULES)] = "ranked",
        strongest_unprotected: bool = False,
        unscaled_inputs: bool = False,
        first_layer_decides: bool = False,
        third_trusts_second: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(network, rank_rule=rank_rule, **options)
        self.trust, self.most, self.trust_samples = trust, most, trust_samples
        self.strongest_unprotected, self.unscaled_inputs = strongest_unprotected, unscaled_inputs
        self.first_layer_decides, self.third_trusts_second = first_layer_decides, third_trusts_second
        self.energy_share = parse_threshold(self.threshold).for_layers(list(self.memory.subspaces))
        chosen = [name for name in self.memory.subspaces if any(fnmatchcase(name, each) for each in scaled)]
        modules = dict(network.named_modules())
        found = {name: ScaledLayer.of(modules.get(name)) for name in chosen}
        self.layers = {name: layer for name, layer in found.items() if layer is not None}
        self.tasks: Sequence[Task] = ()
        self.base_size = sum(p.numel() for p in network.parameters())
        self.scales = network.scales = ScaleMatrices(network.example)
        self.keep("trusted", {}, counted=False)
        self.keep("chosen", {}, per_step=False)
        self.keep("images", {}, per_step=False, counted=False)
        self.refresh()

    def curriculum(self, stream: Stream) -> Sequence[Task]:
        self.tasks = stream.tasks  # a task's examples are looked at before its first step
        return super().curriculum(stream)

    def start(self, task: int) -> None:
        self.task = task
        self.trusted[str(task)] = self.trusted_tasks(task) if self.chosen and self.tasks else {}
        for layer, tasks in self.trusted[str(task)].items():
            for old in tasks:
                self.scales.add(scale_name(task, layer, old), len(self.chosen[str(old)][layer]))
        self.images = self.images_of(task)
        super().start(task)

    def trusted_tasks(self, task: int) -> Trusted:
        """Returns the old tasks whose subspaces hold much of a first gradient, the strongest first."""
        train = self.tasks[task].train.to(self.device)
        some = torch.randperm(len(train), device=self.device)[: self.trust_samples]
        self.network.eval()
        loss = super().loss(train.x[some], train.y[some])
        parameters = [p for layer in self.layers.values() for p in layer.parameters]
        gradients = dict(zip(parameters, torch.autograd.grad(loss, parameters), strict=True))
        candidates = [1] if task == 2 and self.third_trusts_second else range(task)
        trusted: Trusted = {}
        for name, layer in self.layers.items():
            g = layer.matrix([gradients[p] for p in layer.parameters])
            inside = {old: float((g @ self.basis([old], name)).norm()) for old in candidates}
            best = sorted(inside, key=inside.__getitem__, reverse=True)[: self.most]
            trusted[name] = [old for old in best if inside[old] > self.trust * float(g.norm())]
        if self.first_layer_decides and not next(iter(trusted.values())):
            return {}
        return {name: tasks for name, tasks in trusted.items() if tasks}

    def basis(self, tasks: Sequence[int], layer: str) -> Tensor:
        """Returns [B_j | …] of a layer for these tasks."""
        subspace: Any = self.memory.subspaces[layer]
        columns = torch.cat([self.chosen[str(task)][layer] for task in tasks])
        basis: Tensor = subspace.basis[:, columns].to(self.layers[layer].view.weight)
        return basis

    def refresh(self) -> None:
        self.own = self.scalings(self.task, self.images)
        self.capacity = 1 + sum(Q.numel() for Q in self.scales.values()) / self.base_size

    def images_of(self, task: int) -> dict[str, Tensor]:
        """Returns W·B of the layers that a task scales."""
        trusted = self.trusted.get(str(task), {})
        return {name: self.layers[name].image(self.basis(tasks, name)) for name, tasks in trusted.items()}

    def scalings(self, task: int, images: dict[str, Tensor]) -> dict[ScaledLayer, Scaling]:
        """Returns how a task scales its layers."""
        found = {}
        for name, image in images.items():
            tasks = self.trusted[str(task)][name]
            matrices = [self.scales[scale_name(task, name, old)] for old in tasks]
            found[self.layers[name]] = Scaling(self.basis(tasks, name), image, matrices)
        return found

    def scaled(self, task: int) -> AbstractContextManager[None]:
        """Inside the block, the network has the weights of a task."""
        return adding(self.own if task == self.task else self.scalings(task, self.images_of(task)))

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The task's parameters with its own Q."""
        own = {Q for scaling in self.own.values() for Q in scaling.matrices}
        others = {Q for Q in self.scales.values() if Q not in own}
        return [p for p in super().parameters if p not in others]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with self.scaled(self.task):
            return super().loss(x, y)

    logits_recordable = True

    def logits(self, x: Tensor, task: int) -> Tensor:
        with self.scaled(task):
            return super().logits(x, task)

    def forward(self, task: int) -> Forward:
        def run(network: nn.Module, x: Tensor) -> object:
            with self.scaled(task):
                return network(x, task)

        return super().forward(task) if self.unscaled_inputs else run

    def measured(self, task: int, energies: DirectionEnergies, old: int) -> None:
        """Chooses B_t: the fewest directions, strongest first, that hold the share ε of the energy."""
        along, order = energies.along.sort(descending=True)
        enough = self.energy_share(energies.layer, task) * energies.total
        count = int((along.cumsum(0) < enough).sum()) + 1
        self.chosen.setdefault(str(task), {})[energies.layer] = order[:count].sort().values
        if self.strongest_unprotected and task > 0 and old < len(along):
            weights = energies.subspace.weights
            weights[old] = 0
            energies.subspace.weights = weights

    @property
    def nbytes(self) -> int:
        kept: list[Tensor] = [
            *self.scales.values(),
            *(rows for layers in self.chosen.values() for rows in layers.values()),
        ]
        return super().nbytes + sum(tensor.nbytes for tensor in kept)


def scale_name(task: int, layer: str, old: int) -> str:
    """The name of a Q. The name of a parameter has no dots."""
    return f"{task} {layer.replace('.', '/')} {old}"
