"""What a continual-learning method is: how it steps, and what it does when a task begins and ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant.data import Split, Stream, Task
from remnant.models import Network


class Method:
    """Plain SGD on the task at hand; a method changes what it needs to.

    `step` runs on the device alone: no `.item()`, no Python branch on a tensor, no new learning rate as a number, so that
    the trainer can capture it into a CUDA graph. Everything a step changes is changed in place and is in `state_dict`.
    """

    name: str
    needs_task = False  # whether it must be told the task at test time, so that one head for all tasks will not do
    # Whether `logits` keep to a step's rules while a task is learnt, so that validation can be captured too. A class that
    # defines them anew must say it anew.
    logits_recordable = True

    def __init__(self, network: Network, *, lr: float) -> None:
        if self.needs_task and not network.multi_head:
            raise ValueError(
                f"{self.name} must be told the task at test time. This stream has one head for all tasks and gives no such "
                "hint: take a stream with a head per task, or another method."
            )
        self.network = network
        self.device = next(network.parameters()).device
        self.lr = torch.tensor(lr, device=self.device)  # a tensor: a captured step follows its changes
        self.task = 0

    def curriculum(self, stream: Stream) -> Sequence[Task]:
        """The tasks to learn, in order: the stream's own, except for methods that see them otherwise."""
        return stream.tasks

    def start(self, task: int) -> None:
        """Before the first step of a task."""
        self.task = task
        self.network.train()

    def order(self, train: Split, batch: int) -> Tensor:
        """The rows of one epoch in the order they are seen: random."""
        return torch.randperm(len(train), device=self.device)

    def on_epoch_start(self, epoch: int, epochs: int, steps: int) -> None:
        """Before an epoch: which it is of at most how many, and its steps. For what changes as training goes on."""

    def validation(self, task: int, valid: Split) -> dict[int, Split]:
        """What to validate on, by the task whose `logits` are asked for."""
        return {task: valid} if len(valid) else {}

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """One update from one batch; gives the batch's loss."""
        loss = self.loss(x, y)
        self.apply_gradients(self.gradients(loss))
        return loss.detach()

    def remaining(self) -> dict[str, Tensor] | None:
        """Layer → what remains of its input's space, where a step is SGD with each layer's gradient times that matrix.

        A layer that is not named keeps its whole gradient; None says that the method's step is something else.
        """
        return None

    def on_epoch_end(self) -> None:
        """Between two epochs: what need not be done at every step."""

    def finish(self, task: int, train: Split) -> None:
        """After the last step of a task, with its training data for the last time."""

    def logits(self, x: Tensor, task: int) -> Tensor:
        logits: Tensor = self.network(x, task)
        return logits

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.network(x, self.task), y)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What this task trains: the body and the task's own head."""
        others = [] if not self.network.multi_head else [h for h in self.network.heads if h is not self.head]
        idle = {id(parameter) for head in others for parameter in head.parameters()}
        return [p for p in self.network.parameters() if id(p) not in idle and p.requires_grad]

    @property
    def head(self) -> nn.Linear:
        return self.network.head_of(self.task)

    def gradients(self, loss: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(loss, self.parameters))

    @torch.no_grad()
    def apply_gradients(self, gradients: Sequence[Tensor]) -> None:
        """W ← W − lr·∇W, in one pass over both."""
        parameters: list[Tensor] = list(self.parameters)
        laid_out = [  # the one-pass kernel takes gradients to lie in memory as the weights do
            g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)
            for p, g in zip(parameters, gradients, strict=True)
        ]
        torch._fused_sgd_(
            parameters,
            laid_out,
            [],
            weight_decay=0.0,
            momentum=0.0,
            lr=self.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )

    def ranks(self) -> dict[str, list[int]]:
        """Directions added per layer and task, for methods that keep such."""
        return {}

    @property
    def nbytes(self) -> int:
        """Memory the method keeps from one task to the next, the network aside: by default, its state's tensors."""
        return _bytes_of({name: part for name, part in self.state_dict().items() if name != "network"})

    @property
    def capacity(self) -> float:
        """Parameters in use, relative to the network it began with."""
        return 1.0

    def state_dict(self) -> dict[str, Any]:
        return {"network": self.network.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])

    def tensors(self) -> list[Tensor]:
        """Everything a step may change in place."""
        return [*self.network.parameters(), *self.network.buffers()]


def _bytes_of(state: Any) -> int:
    if isinstance(state, Tensor):
        return state.nbytes
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    return sum(map(_bytes_of, parts))
