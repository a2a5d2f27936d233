"""Gradient Projection Memory (Saha, Garg & Roy, 2021) as the paper trains it: SGD on projected gradients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from remnant.data import Split
from remnant.memory import GPM, RANK_RULES, UNSUPPORTED, StepProjector, Subspace, by_layer, is_norm
from remnant.models import Network
from remnant.options import Positive, Share, choice, per_layer, threshold, whole

from .base import Method

NORMS = ("frozen", "own", "free")
Forward = Callable[[nn.Module, Tensor], object]


class GradientProjection(Method):
    """Steps along the part of the gradient that is orthogonal to the inputs of past tasks (Eq. 6–7).

    `threshold` is ε: a number, `{"start": ε₀, "step": δ}` for ε₀ + δ·t, or `{"layers": {pattern: ε}}`. The memory is
    computed from `samples` random examples of a task; `layer_samples` uses fewer in some layers, by name pattern.
    `rank_rule` is "paper" for Eq. 5 and 9, "authors" for the count of the published scripts, or "ranked" for TRGP's rule.

    `task_norms` is "frozen" to freeze norms after the first task, as in the paper; "own" to give each task its own; or "free"
    to let all tasks train the same ones, which forgets. As in `remnant.GPM`, `unsupported` says what to do about parameters
    that no rule covers, and `exclude` what to leave unprotected.
    """

    name = "gpm"
    ordered = False  # whether the memory stores what `GPM.recall` needs
    soft: float | None = None  # α of SGP
    memory: GPM

    def __init__(
        self,
        network: Network,
        *,
        threshold: Annotated[Any, threshold()] = 0.97,
        samples: Positive = 300,
        layer_samples: Annotated[Mapping[str, int] | None, per_layer(whole(1))] = None,
        rank_rule: Annotated[str, choice(RANK_RULES)] = "paper",
        task_norms: Annotated[str, choice(NORMS)] = "frozen",
        label_smoothing: Share = 0.0,
        unsupported: Annotated[str, choice(UNSUPPORTED)] = "error",
        exclude: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(network, **options)
        self.threshold, self.samples, self.layer_samples = threshold, samples, layer_samples
        self.rank_rule = rank_rule
        self.has_own_norms, self.label_smoothing = task_norms == "own", label_smoothing
        # Heads of single tasks are free; a shared head is a layer like the others (Sec. 6).
        exclude = [*(["heads.*"] if network.multi_head else []), *(exclude or [])]
        rules: Any = {"rank_rule": rank_rule, "recall": self.ordered, "soft": self.soft, "unsupported": unsupported}
        memory = GPM(network, threshold, exclude=exclude, norm="freeze" if task_norms == "frozen" else "free", **rules)
        if layer_samples:  # refuses unknown layers before training
            by_layer(layer_samples, memory.subspaces, "layer_samples")
        self.keep("memory", memory)
        self.keep("own_tensors", {}, per_step=False)
        self.projector = StepProjector(memory)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The task's parameters without those that the memory freezes, which need no gradient."""
        frozen = set(self.projector.frozen_parameters)
        return [p for p in super().parameters if p not in frozen]

    fast_form: str | None = "projected-sgd"

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        loss, gradients = self.projected(lambda: self.loss(x, y), len(x))
        self.apply_gradients(gradients)
        return loss

    def projected(self, loss: Callable[[], Tensor], rows: int) -> tuple[Tensor, dict[Tensor, Tensor]]:
        """Returns the loss of a batch of `rows` rows and its projected gradient (Eq. 6–7)."""
        with self.projector.through_inputs(rows):
            value = loss()
            return value.detach(), self.projector.project(self.gradients(value))

    def apply_gradients(self, gradients: dict[Tensor, Tensor]) -> None:
        super().apply_gradients(gradients)
        if not self.uses_plain_sgd:
            self.projector.restore()  # the step of another optimizer is not a multiple of the projected gradient

    def layer_projections(self) -> dict[str, Tensor]:
        return self.projector.layer_projections()

    def on_epoch_end(self) -> bool | None:
        """Undoes what rounding has moved inside the memory: with TF32, about a thousandth of the change."""
        self.projector.restore()
        return None

    def finish(self, task: int, train: Split, forward: Forward | None = None) -> None:
        """Eq. 5, 8 and 9 on random training examples, in one batch because norms may use its statistics."""
        chosen = torch.randperm(len(train), device=self.device)[: self.samples]
        forward = forward or (lambda network, x: network(x, task))
        self.memory.consolidate([train.x[chosen]], layer_samples=self.layer_samples, forward=forward)
        if self.has_own_norms:
            self.keep_norms(task)

    def keep_norms(self, task: int) -> None:
        """Keeps the task's norms. The next task starts with them."""
        norms = {name: norm for name, norm in self.network.named_modules() if is_norm(norm)}
        tensors = {f"{name}.{key}": value for name, norm in norms.items() for key, value in norm.state_dict().items()}
        self.own_tensors[str(task)] = {name: tensor.clone() for name, tensor in tensors.items()}

    def subspace(self, layer: str) -> Subspace:
        """Returns the subspace of a layer that has no groups."""
        subspace = self.memory.subspaces[layer]
        assert isinstance(subspace, Subspace)
        return subspace

    def basis(self, layer: str) -> Tensor:
        """Returns M of a layer that has no groups, in the network's dtype."""
        return self.subspace(layer).basis.to(next(self.network.parameters()))

    @property
    def nbytes(self) -> int:
        own = sum(tensor.nbytes for tensors in self.own_tensors.values() for tensor in tensors.values())
        return self.memory.report().nbytes + own

    def ranks(self) -> dict[str, list[int]]:
        return {layer.name: list(layer.added) for layer in self.memory.report().layers}
