"""Trust region gradient projection (Lin, Yang, Fan & Zhang, 2022): a task scales what similar tasks have learnt."""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from torch import Tensor

from remnant.data import Split
from remnant.memory import RANK_RULES, TaskInputs, grow_by
from remnant.models import Network
from remnant.options import Positive, choice, number

from .gpm import Forward
from .parts.own_scales import OwnScales, scale_name
from .parts.scaled import ScaledLayer, Scaling

Trusted = dict[str, list[int]]  # layer → tasks


class TRGP(OwnScales):
    """Steps as GPM does, through weights W_eff = W + Σ_j W·B_j·(Q_j − I)·B_jᵀ. A task trains its own Q_j with W.

    Before a task, one gradient g on `trust_samples` examples decides per layer which old tasks j it trusts: at most `most`
    of them, with the largest ‖g·B_j‖ above `trust`·‖g‖. B_j are the fewest directions of the memory that hold the share ε of
    the energy of task j's inputs. Test examples need their task, which selects the Q_j, even if all tasks share a head.

    The layers to scale are given by patterns (`scaled`). Four switches, off by default, repeat what the public code does:
    `strongest_unprotected` leaves the strongest new direction of each later task unprotected; `unscaled_inputs` remembers the
    inputs that the network has without Q; `first_layer_decides` trusts no task in any layer unless the first layer does; and
    with `third_trusts_second`, the third task can trust the second only. `task_norms="free"` repeats a fifth.
    """

    name = "trgp"
    trusted: dict[str, Trusted]  # by task
    chosen: dict[str, dict[str, Tensor]]  # task → layer → which directions of the memory are B_j
    images: dict[str, Tensor]  # layer → W·B of the current task
    own: dict[ScaledLayer, Scaling]

    def __init__(
        self,
        network: Network,
        *,
        trust: Annotated[float, number(0, 10)] = 0.5,
        most: Positive = 2,
        trust_samples: Positive = 300,
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
        self.keep("trusted", {}, counted=False)
        self.keep("chosen", {}, per_step=False)
        self.keep("images", {}, per_step=False, counted=False)
        for each in self.memory.subspaces.values():
            for subspace in each if isinstance(each, list) else [each]:
                subspace.ordered = True  # `chosen` holds the numbers of directions
        grow_by(self.memory, self.grow)
        self.refresh()

    def start(self, task: int) -> None:
        self.task, self.own = task, {}
        self.trusted[str(task)] = {}
        if self.chosen and self.tasks:
            self.trusted[str(task)] = self.trusted_tasks(task, self.gradients_on(self.tasks[task].train))
        for layer, tasks in self.trusted[str(task)].items():
            for old in tasks:
                self.scales.add(scale_name(task, layer, old), len(self.chosen[str(old)][layer]))
        self.images = self.images_of(task)
        super().start(task)

    def gradients_on(self, train: Split) -> dict[str, Tensor]:
        """Returns the gradients of the scaled layers as matrices, on a few examples."""
        x, y = self.random_examples(train, self.trust_samples)
        self.network.eval()
        parameters: list[Tensor] = [p for layer in self.layers.values() for p in layer.parameters]
        found = dict(zip(parameters, torch.autograd.grad(self.loss(x, y), parameters), strict=True))
        return {name: layer.gradient(found) for name, layer in self.layers.items()}

    def trusted_tasks(self, task: int, gradients: dict[str, Tensor]) -> Trusted:
        """Returns the old tasks whose subspaces hold much of a first gradient, the strongest first."""
        candidates = [1] if task == 2 and self.third_trusts_second else range(task)
        trusted: Trusted = {}
        for name, g in gradients.items():
            inside = {old: float((g @ self.trusted_basis([old], name)).norm()) for old in candidates}
            best = sorted(inside, key=inside.__getitem__, reverse=True)[: self.most]
            trusted[name] = [old for old in best if inside[old] > self.trust * float(g.norm())]
        if self.first_layer_decides and not next(iter(trusted.values())):
            return {}
        return {name: tasks for name, tasks in trusted.items() if tasks}

    def trusted_basis(self, tasks: Sequence[int], layer: str) -> Tensor:
        """Returns [B_j | …] of a layer for these tasks."""
        return self.basis(layer)[:, torch.cat([self.chosen[str(task)][layer] for task in tasks])]

    def refresh(self) -> None:
        self.own = self._scalings(self.task, self.images)  # a captured step needs the same tensors every time
        self.capacity = 1 + sum(Q.numel() for Q in self.scales.values()) / self.base_size

    def images_of(self, task: int) -> dict[str, Tensor]:
        """Returns W·B of the layers that a task scales."""
        trusted = self.trusted.get(str(task), {})
        return {name: self.layers[name].image(self.trusted_basis(tasks, name)) for name, tasks in trusted.items()}

    def scalings(self, task: int) -> dict[ScaledLayer, Scaling]:
        return self.own if task == self.task else self._scalings(task, self.images_of(task))

    def _scalings(self, task: int, images: dict[str, Tensor]) -> dict[ScaledLayer, Scaling]:
        found = {}
        for name, image in images.items():
            tasks = self.trusted[str(task)][name]
            matrices = [self.scales[scale_name(task, name, old)] for old in tasks]
            found[self.layers[name]] = Scaling(self.trusted_basis(tasks, name), image, matrices)
        return found

    def forward(self, task: int) -> Forward:
        return (lambda network, x: network(x, task)) if self.unscaled_inputs else super().forward(task)

    def grow(self, inputs: TaskInputs, threshold: float) -> None:
        """Adds directions as GPM does, and chooses B_t: the fewest, strongest first, that hold the share ε of the energy."""
        subspace = inputs.subspace
        old = subspace.rank
        subspace.grow(inputs.rows_gram, threshold, self.rank_rule)
        along, order = inputs.along.sort(descending=True)
        count = int((along.cumsum(0) < threshold * inputs.total).sum()) + 1
        self.chosen.setdefault(str(self.task), {})[inputs.layer] = order[:count].sort().values
        if self.strongest_unprotected and self.task > 0 and old < len(along):
            weights = subspace.weights
            weights[old] = 0
            subspace.weights = weights

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(rows.nbytes for layers in self.chosen.values() for rows in layers.values())
