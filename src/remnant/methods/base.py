"""What a continual-learning method is: how it takes a step, and what it does when a task starts and ends."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from remnant.data import Split, Stream, Task
from remnant.models import Network
from remnant.options import checked, number

from .optimizers import OPTIMIZERS, OptimizerFactory, initial_state
from .state import Stateful

# A class that overrides one of these parts must declare the property again: it was declared for the other code.
DECLARATIONS: dict[str, tuple[str, ...]] = {
    "fast_form": ("step", "loss", "gradients", "apply_gradients", "parameters"),
    "logits_recordable": ("logits",),
}
plain_sgd = partial(
    torch._fused_sgd_, weight_decay=0, momentum=0, dampening=0, nesterov=False, maximize=False, is_first_step=False
)


class Method(Stateful):
    """SGD on the current task. A subclass overrides the parts in which it differs.

    Trainers capture `step` into a CUDA graph. So a step computes on the device alone, without `.item()` and without a Python
    branch on a tensor, and it changes tensors in place. State that lives longer than a step is declared with `keep`.

    Args:
        network: The network to train, on its device.
        lr: The learning rate that training starts with.
    """

    name = ""
    needs_task = False  # whether `logits` must be given the right task, so that the stream must have one head per task
    logits_recordable = True  # whether validation can be captured too, because `logits` follows the rules of `step`
    lr: Tensor  # a tensor, because captured steps must follow its changes
    network: Network
    optimizer_state: list[Tensor]

    def __init__(self, network: Network, *, lr: Annotated[float, number(0, 10, above=True)] = 0.01) -> None:
        if self.needs_task and not network.multi_head:
            raise ValueError(
                f"{self.name or type(self).__name__} must be told the task at test time, but this stream has one head for all "
                "tasks. Choose a stream with one head per task, or another method."
            )
        self.device = next(network.parameters()).device
        self.task = 0
        self._make_optimizer: OptimizerFactory | None = None
        self._optimizer: Optimizer | None = None
        self.keep("network", network, counted=False)
        self.keep("lr", torch.tensor(lr, device=self.device), per_step=False, counted=False)
        self.keep("optimizer_state", [], counted=False)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for declaration, parts in DECLARATIONS.items():
            declared_by = next(kind for kind in cls.__mro__ if declaration in vars(kind))
            if any(getattr(cls, part) is not getattr(declared_by, part) for part in parts):
                setattr(cls, declaration, None)

    def use_optimizer(self, name: str, **options: Any) -> None:
        """Replaces plain SGD by another optimiser, which starts with a fresh state in every task.

        Args:
            name: One of `OPTIMIZERS`, such as "adamw".
            **options: Its options, such as `weight_decay`. The learning rate is the method's `lr`.
        """
        self._make_optimizer = OPTIMIZERS[name](**checked(OPTIMIZERS[name], options, f"the optimizer {name}"))

    @property
    def uses_plain_sgd(self) -> bool:
        return self._make_optimizer is None

    # --- a task ---------------------------------------------------------------------------------------------------

    def curriculum(self, stream: Stream) -> Sequence[Task]:
        """Returns the tasks to learn, in order."""
        return stream.tasks

    def start(self, task: int) -> None:
        """Prepares the first step of a task."""
        self.task = task
        self.network.train()
        self._refresh()
        if self._make_optimizer is not None:
            self._optimizer = self._make_optimizer(self.parameters, self.lr)
            self.optimizer_state = initial_state(self._optimizer)

    def order(self, train: Split, batch: int) -> Tensor:
        """Returns the rows of `train` in the order in which an epoch visits them."""
        return torch.randperm(len(train), device=self.device)

    def validation(self, task: int, valid: Split) -> dict[int, Split]:
        """Returns the validation data by the task that its `logits` are computed for."""
        return {task: valid} if len(valid) else {}

    def on_epoch_start(self, epoch: int, epochs: int, steps: int) -> None:
        """Prepares an epoch: its number, how many there are at most, and how many steps it has."""

    def on_epoch_end(self) -> None:
        """Does what is needed once per epoch rather than at every step."""

    def finish(self, task: int, train: Split) -> None:
        """Remembers a task after its last step. Its training data is not seen again."""

    def logits(self, x: Tensor, task: int) -> Tensor:
        """Answers at test time."""
        logits: Tensor = self.network(x, task)
        return logits

    # --- a step ---------------------------------------------------------------------------------------------------

    # Each step is SGD with every layer's gradient multiplied by `layer_projections()[layer]`, a matrix that is constant
    # within a task. Small fully connected networks then take it without autograd (remnant.accelerated).
    fast_form: str | None = "projected-sgd"

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """Updates the weights from one batch and returns its loss."""
        loss = self.loss(x, y)
        self.apply_gradients(self.gradients(loss))
        return loss.detach()

    def layer_projections(self) -> dict[str, Tensor]:
        """Returns the matrices of the fast form. A layer that is not named keeps its whole gradient."""
        return {}

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.network(x, self.task), y)

    @property
    def head(self) -> nn.Linear:
        return self.network.head_of(self.task)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that this task trains: the body and the task's own head."""
        idle = {p for head in self.network.heads for p in head.parameters()} if self.network.multi_head else set()
        idle -= set(self.head.parameters())
        return [p for p in self.network.parameters() if p not in idle and p.requires_grad]

    def gradients(self, loss: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(loss, self.parameters))

    @torch.no_grad()
    def apply_gradients(self, gradients: Sequence[Tensor]) -> None:
        """W ← W − lr·∇W in one pass over all parameters, or a step of the chosen optimiser."""
        parameters: list[Tensor] = list(self.parameters)
        # Fused kernels expect a gradient to have the memory layout of its parameter.
        pairs = zip(parameters, gradients, strict=True)
        gradients = [g if g.stride() == p.stride() else torch.empty_like(p).copy_(g) for p, g in pairs]
        if self._optimizer is not None:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            self._optimizer.step()
            self._optimizer.zero_grad()
            return
        plain_sgd(parameters, gradients, [], lr=self.lr)

    # --- for the tables -------------------------------------------------------------------------------------------

    def ranks(self) -> dict[str, list[int]]:
        """Returns, per layer, how many directions each task has added. Empty for methods that keep no directions."""
        return {}

    @property
    def capacity(self) -> float:
        """Parameters in use, relative to the network that training started with."""
        return 1.0
