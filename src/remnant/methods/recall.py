"""Recall: each task gets its exact old network back, so nothing is forgotten, with low-rank weights of its own if asked."""

import math
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from remnant.data import Split
from remnant.memory import ProjectedLinear, task_inputs
from remnant.models import Network
from remnant.options import choice, whole

from .gpm import Forward, GradientProjection
from .parts.scaled import ScaledLayer

Count = Annotated[int, whole()]
STARTS = ("random", "memory")


class Recall(GradientProjection):
    """Task t answers with the weights W·M_t·M_tᵀ + U_t·V_t, where M_t is the memory when the task ended.

    Later steps never change W·M_t, so a task's outputs stay the same for every input. What the truncation costs is trained
    away: the task is consolidated before its last `retrain` epochs, in which the network computes with W·M_t·M_tᵀ and only the
    directions that are new with the task move. U_t (outputs × r) and V_t (r × inputs) belong to the task; r is `own_rank`, and
    0 leaves them out. U_t starts at 0 and V_t at random directions, or, with `own_start="memory"`, at the r directions of
    the memory that the task's inputs use most: W cannot learn there. The first task then has no such part, since its memory
    is empty. The learning rate falls by a cosine over the task (`anneal`), so train a fixed number of epochs, without
    early stopping. Where tasks share a head, the inputs tell the task of a test example (`GPM.which_task`), and nobody else
    (`named_by_inputs`).
    """

    name = "remnant-recall"
    ordered = True
    rest: dict[str, Tensor]  # W − W·M_t·M_tᵀ by parameter, while the truncated network is trained
    remembered: int  # tasks that are consolidated
    u: dict[str, Tensor]  # "task layer" → U_t
    v: dict[str, Tensor]
    low_rank_parts: Mapping[str, tuple[nn.Parameter, nn.Parameter]]

    def __init__(
        self,
        network: Network,
        *,
        retrain: Count = 1,
        own_rank: Count = 0,
        own_start: Annotated[str, choice(STARTS)] = "random",
        anneal: bool = True,
        named_by_inputs: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(network, anneal=anneal, **options)
        self.retrain, self.own_rank = retrain, own_rank
        self.starts_in_memory = own_start == "memory"
        self.named_by_inputs = named_by_inputs and not network.multi_head
        modules, names = dict(network.named_modules()), {p: name for name, p in network.named_parameters()}
        found = {name: ScaledLayer.of(modules.get(name)) for name in self.memory.subspaces}
        if other := [name for name, layer in found.items() if layer is None]:
            raise ValueError(f"Recall knows plain linear layers and convolutions, and {other[0]!r} is another layer.")
        self.layers = {name: layer for name, layer in found.items() if layer is not None}
        plain = {name for name, layer in self.layers.items() if type(layer.module) is nn.Linear}
        self.linear = {name for name in plain if len(self.layers[name].parameters) == 1}  # linear layers without a bias
        self.parameter_names = {name: [names[p] for p in layer.parameters] for name, layer in self.layers.items()}
        # A step reads them, so they keep their place in memory when the task is consolidated.
        sizes = {name: sum(p[0].numel() for p in layer.parameters) for name, layer in self.layers.items()}
        dtype = next(network.parameters()).dtype
        self.allowed = {name: torch.eye(size, dtype=dtype, device=self.device) for name, size in sizes.items()}
        self.base_size = sum(p.numel() for p in network.parameters())
        self.keep("remembered", 0)
        self.keep("rest", {}, per_step=False, counted=False)
        self.keep("u", {})
        self.keep("v", {})
        self.keep("starting", False)
        self.keep("retraining", False)
        self.refresh()

    def use_optimizer(self, name: str, **options: Any) -> None:
        raise ValueError(f"this method works only with plain SGD, not with {name}. Remove --set optimizer.")

    def start(self, task: int) -> None:
        has_parts = self.own_rank and (task > 0 or not self.starts_in_memory)
        for name, layer in self.layers.items() if has_parts else ():
            outputs, inputs = layer.view.outputs, layer.view.inputs
            like: Any = {"dtype": layer.view.weight.dtype, "device": self.device}
            self.u[f"{task} {name}"] = torch.zeros(outputs, self.own_rank, **like)
            spread = torch.randn(self.own_rank, inputs, **like) / math.sqrt(inputs)
            self.v[f"{task} {name}"] = spread
        super().start(task)

    @torch.no_grad()
    def refresh(self) -> None:
        """Computes what steps may change: everything outside the memory, or what is new with the task."""
        self.step_version = int(bool(self.rest))
        self.networks: dict[int, dict[str, Tensor]] = {}  # the weights that old tasks answer with
        self.few_directions: dict[str, Tensor] = {}
        for name, allowed in self.allowed.items():
            subspace: Any = self.memory.subspaces[name]
            basis = subspace.basis.to(allowed)
            if self.rest:
                basis = basis[:, sum(self.ranks()[name][:-1]) :]
            inside = basis @ basis.mT
            allowed.copy_(inside if self.rest else torch.eye(len(basis), device=self.device) - inside)
            # A captured step needs tensors of one shape.
            if self.device.type == "cpu" and 2 * basis.shape[1] < len(basis):
                self.few_directions[name] = basis
        own_size = sum(part.numel() for parts in (self.u, self.v) for part in parts.values())
        self.capacity = 1 + own_size / self.base_size
        keys = {name: f"{self.task} {name}" for name in self.layers}
        self.low_rank_parts = {
            name: (nn.Parameter(self.u[key]), nn.Parameter(self.v[key])) for name, key in keys.items() if key in self.u
        }

    def on_epoch_start(self, epoch: int, epochs: int, steps: int) -> None:
        self.starting, self.retraining = epoch == 0, epoch >= epochs - self.retrain

    def order(self, train: Split, batch: int) -> Tensor:
        if self.starting and self.starts_in_memory and self.low_rank_parts:
            self.start_in_memory(train)
        if self.retraining and self.remembered == self.task:
            self.truncate(train)
        return super().order(train, batch)

    @torch.no_grad()
    def start_in_memory(self, train: Split) -> None:
        """Starts V at the directions inside the memory that hold most of the energy of the task's inputs."""
        chosen = torch.randperm(len(train), device=self.device)[: self.samples]
        how: Any = {"layer_samples": self.layer_samples, "forward": lambda network, x: network(x, self.task)}
        for inputs in task_inputs(self.memory, [train.x[chosen]], **how):
            M, (_, v) = inputs.subspace.basis.to(inputs.gram), self.low_rank_parts[inputs.layer]
            strongest = torch.linalg.eigh(M.mT @ inputs.gram @ M).eigenvectors.flip(1)[:, : len(v)]
            directions = (M @ strongest).mT[:, : v.shape[1]]  # without the bias
            v[: len(directions)].copy_(directions)  # a small memory has fewer than r; the others stay random

    @torch.no_grad()
    def truncate(self, train: Split) -> None:
        """Consolidates the task, and puts W·M_t·M_tᵀ in place of W."""
        self.remember(train)
        parameters, recalled = dict(self.network.named_parameters()), self.memory.recalled(self.task)
        for name in (name for names in self.parameter_names.values() for name in names):
            self.rest[name] = parameters[name] - recalled[name]
            parameters[name].copy_(recalled[name])
        self.refresh()

    def remember(self, train: Split) -> None:
        chosen = torch.randperm(len(train), device=self.device)[: self.samples]
        self.memory.consolidate(
            [train.x[chosen]],
            layer_samples=self.layer_samples,
            forward=lambda network, x: functional_call(network, self.effective(), (x, self.task)),
        )
        self.remembered = self.task + 1

    @torch.no_grad()
    def finish(self, task: int, train: Split, forward: Forward | None = None) -> None:
        if self.remembered == task:
            self.remember(train)
        parameters = dict(self.network.named_parameters())
        for name, rest in self.rest.items():
            parameters[name].add_(rest)
        self.rest = {}
        self.projector.begin_task()  # the directions that are new with the task have moved since it was consolidated
        if self.has_own_norms:
            self.keep_norms(task)
        self.refresh()

    def effective(self, without: Container[str] = ()) -> dict[str, Tensor]:
        """Returns W + U·V for every layer, with the current task's U and V, except for the layers `without`."""
        parameters = dict(self.network.named_parameters())
        return {
            (weight := self.parameter_names[name][0]): parameters[weight] + self.layers[name].view.tensor((u @ v)[None])
            for name, (u, v) in self.low_rank_parts.items()
            if name not in without
        }

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [*super().parameters, *(part for pair in self.low_rank_parts.values() for part in pair)]

    def remaining(self, name: str, matrix: Tensor) -> Tensor:
        """Returns rows of inputs, or of a gradient, without what steps may not change in a layer."""
        if (basis := self.few_directions.get(name)) is None:
            return matrix @ self.allowed[name]
        inside = (matrix @ basis) @ basis.mT
        return inside if self.rest else matrix - inside

    def linear_forward(self, name: str, weight: Tensor, x: Tensor) -> Tensor:
        """x·(W + U·V)ᵀ with a projected gradient of W, from x on: a batch mostly has fewer rows than a layer has outputs."""
        output: Tensor = ProjectedLinear.apply(x, weight, partial(self.remaining, name))  # type: ignore[no-untyped-call]
        if pair := self.low_rank_parts.get(name):
            output = output + F.linear(F.linear(x, pair[1]), pair[0])
        return output

    @contextmanager
    def projecting(self) -> Iterator[None]:
        """Inside the block, linear layers compute by `linear_forward`."""
        layers: dict[str, Any] = {name: self.layers[name].module for name in self.linear}
        try:
            for name, layer in layers.items():
                layer.forward = partial(self.linear_forward, name, layer.weight)
            yield
        finally:
            for layer in layers.values():
                vars(layer).pop("forward", None)

    def loss(self, x: Tensor, y: Tensor, without: Container[str] = ()) -> Tensor:
        logits = functional_call(self.network, self.effective(without), (x, self.task))
        return F.cross_entropy(logits, y, label_smoothing=self.label_smoothing)

    fast_form: str | None = "low-rank-sgd"

    def layer_projections(self) -> dict[str, Tensor]:
        return self.allowed

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        with self.projecting():
            loss = self.loss(x, y, without=self.linear)
        gradients = self.gradients(loss)
        for name, layer in self.layers.items():
            if name not in self.linear:  # theirs are projected already
                matrix = self.remaining(name, layer.matrix([gradients[p] for p in layer.parameters]))
                gradients.update(zip(layer.parameters, layer.tensors(matrix), strict=True))
        self.apply_gradients(gradients)
        return loss.detach()

    def on_epoch_end(self) -> None:
        """Undoes what rounding has moved inside the memory, unless that is what the task still trains."""
        if not self.rest:
            super().on_epoch_end()

    @torch.no_grad()
    def network_of(self, task: int) -> dict[str, Tensor]:
        """Returns the weights that an old task answers with."""
        recalled = self.memory.recalled(task)
        weights = {name: recalled[name] for names in self.parameter_names.values() for name in names}
        for name, layer in self.layers.items():
            if (key := f"{task} {name}") in self.u:
                weights[self.parameter_names[name][0]] += layer.view.tensor((self.u[key] @ self.v[key])[None])
        return {**weights, **self.own_tensors.get(str(task), {})}

    def answer(self, x: Tensor, task: int) -> Tensor:
        if task not in self.networks:
            self.networks[task] = self.network_of(task)
        logits: Tensor = functional_call(self.network, self.networks[task], (x, task))
        return logits

    logits_recordable = True  # validation is of the task at hand

    def logits(self, x: Tensor, task: int) -> Tensor:
        if self.rest or task >= self.remembered:  # it is being learnt
            logits: Tensor = functional_call(self.network, self.effective(), (x, task))
            return logits
        if not self.named_by_inputs:
            return self.answer(x, task)
        named = self.memory.which_task(x, forward=lambda network, batch: network(batch, 0)).task
        answers = torch.stack([self.answer(x, each) for each in range(self.remembered)])
        return answers[named, torch.arange(len(x), device=self.device)]

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(part.nbytes for parts in (self.u, self.v) for part in parts.values())
