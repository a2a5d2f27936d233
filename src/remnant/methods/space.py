"""SPACE, first called PCA-CL (Saha et al., 2020): a task keeps as many filters of a layer as its outputs need directions."""

from contextlib import ExitStack
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from remnant.data import Split
from remnant.models import Network
from remnant.options import Positive, number

from .parts.partial import PartlyFrozen, masked

EnergyShare = Annotated[float, number(0, 1, above=True)]


class SPACE(PartlyFrozen):
    """Task t uses the first k_t filters of each layer, trains those after the first k_{t−1}, and leaves the rest to others.

    A task first trains all filters that are not taken. Then C, the covariance of a layer's outputs before its norm and ReLU,
    is taken over `samples` examples. S = C_nn − C_no·C_oo⁻¹·C_on is the covariance of the new filters n that the old filters o
    do not explain. k_t − k_{t−1} is the smallest number of principal components of S that, together with what o explain, have
    the share `threshold` of tr(C_nn). The last `retrain` epochs train with these filters alone. Filters read only filters that
    existed when they were trained, so a task's outputs never change. Norms belong to the first task.
    """

    name = "space"
    has_phases = True
    freezes_norms = True
    needs_task = True
    widths: list[list[int]]  # k of each layer's filters, by task
    shown: list[Tensor]  # 1 for the filters that the current task uses

    def __init__(
        self,
        network: Network,
        *,
        threshold: EnergyShare = 0.99,
        samples: Positive = 1000,
        retrain: Positive = 10,
        **options: Any,
    ) -> None:
        super().__init__(network, **options)
        self.threshold, self.samples, self.retrain = threshold, samples, retrain
        self.units = network.wiring()
        self.keep("widths", [])
        self.keep("shown", [network.example.new_ones(units.count) for units in self.units], counted=False)
        layers = [layer for units in self.units for layer, _, _ in units.made_by]
        self.moving = {p: torch.ones_like(p, requires_grad=False) for layer in layers for p in layer.parameters()}
        self.due = False

    def start(self, task: int) -> None:
        for shown in self.shown:
            shown.fill_(1)
        super().start(task)

    def refresh(self) -> None:
        """Marks the filters that are not taken, with all their weights."""
        for units, taken in zip(self.units, self.widths_of(self.task - 1), strict=True):
            for layer, _, _ in units.made_by:
                for p in layer.parameters():
                    self.moving[p].fill_(1)[:taken] = 0

    def widths_of(self, task: int) -> list[int]:
        """k of each layer; 0 before the first task."""
        return self.widths[task] if 0 <= task < len(self.widths) else [0] * len(self.units)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with masked(self.units, self.shown):
            return super().loss(x, y)

    def on_epoch_start(self, epoch: int, epochs: int, steps: int) -> None:
        self.due = epoch >= max(1, epochs - self.retrain)

    def order(self, train: Split, batch: int) -> Tensor:
        if self.due and len(self.widths) == self.task:  # here an epoch begins with access to the data
            self.choose(train)
        return super().order(train, batch)

    def finish(self, task: int, train: Split) -> None:
        if len(self.widths) == task:  # early stopping has ended the task before its last epochs
            self.choose(train)

    @torch.no_grad()
    def choose(self, train: Split) -> None:
        """Finds k_t, and cuts the connections from filters after the first k_t to those before."""
        covariances = self.covariances(train)
        old = self.widths_of(self.task - 1)
        self.widths.append([k + new_filters(C, k, self.threshold) for C, k in zip(covariances, old, strict=True)])
        widths = dict(zip(self.units, self.widths[-1], strict=True))
        for units, shown in zip(self.units, self.shown, strict=True):
            shown[widths[units] :] = 0
            for layer, _, reads in units.made_by:
                if reads is not None:  # a flattened channel feeds several adjacent columns
                    columns = widths[reads] * (layer.weight.shape[1] // reads.count)
                    layer.weight[old[self.units.index(units)] : widths[units], columns:] = 0

    @torch.no_grad()
    def covariances(self, train: Split) -> list[Tensor]:
        """The covariance of each layer's outputs, over examples and positions."""
        found: dict[nn.Module, Tensor] = {}

        def record(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            found[layer] = output.transpose(0, 1).flatten(1).double().cov().view(output.shape[1], -1)

        chosen = torch.randperm(len(train), device=self.device)[: self.samples]
        layers = [units.made_by[0].layer for units in self.units]
        training = self.network.training
        with ExitStack() as hooks:
            for layer in layers:
                hooks.enter_context(layer.register_forward_hook(record))
            self.network.eval()(train.x[chosen], self.task)
        self.network.train(training)
        return [found[layer] for layer in layers]

    logits_recordable = True

    def logits(self, x: Tensor, task: int) -> Tensor:
        masks = self.shown
        if task < self.task:
            counts = zip(self.shown, self.widths[task], strict=True)
            masks = [(torch.arange(len(shown), device=self.device) < k).to(shown.dtype) for shown, k in counts]
        with masked(self.units, masks):
            return super().logits(x, task)


def new_filters(covariance: Tensor, old: int, threshold: float) -> int:
    """How many filters must join the first `old` ones to explain the share `threshold` of the others' variance."""
    new = covariance[old:, old:]
    by_old = torch.linalg.pinv(covariance[:old, :old], hermitian=True) @ covariance[:old, old:] if old else new[:0]
    unexplained = new - covariance[old:, :old] @ by_old
    rest = torch.linalg.eigvalsh(unexplained).flip(0).clamp(min=0).cumsum(0)
    wanted = threshold * new.trace() - (new - unexplained).trace()
    count = int((rest < wanted).sum()) + int(wanted > 0) if len(new) else 0
    return min(max(count, int(old == 0)), len(new))
