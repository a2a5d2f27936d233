"""What a continual-learning method is: how it takes a step, and what it does when a task starts and ends."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from remnant.data import Split, Stream, Task
from remnant.memory import is_norm, keep_in_eval_mode
from remnant.models import Network
from remnant.options import checked, number

from .hooks import check_hooks
from .optimizers import OPTIMIZERS, OptimizerFactory, initial_state

# A class that overrides one of these parts must declare the property again: it was declared for the other code.
DECLARATIONS: dict[str, tuple[str, ...]] = {
    "fast_form": ("step", "loss", "gradients", "apply_gradients", "parameters"),
    "logits_recordable": ("logits",),
}
plain_sgd = partial(
    torch._fused_sgd_, weight_decay=0, momentum=0, dampening=0, nesterov=False, maximize=False, is_first_step=False
)


class Stateful:
    """An object that declares its state with `keep`, as a module does with `register_buffer`. Only kept state is saved."""

    device: torch.device
    _kept: dict[str, tuple[bool, bool]]  # name → per_step, counted

    def keep(self, name: str, value: Any, *, per_step: bool = True, counted: bool = True) -> None:
        """Sets the attribute `name` and declares it as state.

        Args:
            name: The attribute. It may be assigned again later, except in a step.
            value: A tensor, number or string, a list or dict of these, or an object with `state_dict` and
                `load_state_dict`, such as a module.
            per_step: Whether a step may change it in place. False saves a copy of large tensors when steps are captured.
            counted: Whether its bytes count as the method's memory.
        """
        vars(self).setdefault("_kept", {})[name] = per_step, counted
        setattr(self, name, value)

    def refresh(self) -> None:
        """Recomputes attributes that follow from the kept state. Called when a task starts and after a state is loaded."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the kept state, which shares memory with the object."""
        values = {name: getattr(self, name) for name in self._kept}
        return {name: value.state_dict() if hasattr(value, "state_dict") else value for name, value in values.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state. Tensors keep their place in memory where shapes agree: captured steps read them there."""
        for name in self._kept:
            setattr(self, name, _restored(getattr(self, name), state[name], self.device))
        self.refresh()

    def forgotten(self, before: Mapping[str, Any]) -> list[str]:
        """Returns the attributes set since `before` that a resumed run would not have: not kept, and not from `refresh`."""
        unkept = {name: value for name, value in vars(self).items() if name not in self._kept}
        changed = {name: value for name, value in unkept.items() if value is not before.get(name)}
        if changed:
            for name in changed:
                delattr(self, name)
            with suppress(AttributeError):  # it reads what it should compute
                self.refresh()
        lost = [name for name in changed if name not in vars(self)]
        vars(self).update({name: changed[name] for name in lost})
        return lost

    def step_tensors(self) -> list[Tensor]:
        """Returns every tensor that a step may change in place."""
        found: list[Tensor] = []
        for name, (per_step, _) in self._kept.items():
            for leaf in _leaves(getattr(self, name)):
                if isinstance(leaf, Stateful):
                    found += leaf.step_tensors()
                elif per_step and isinstance(leaf, Tensor):
                    found.append(leaf)
        return found

    @property
    def nbytes(self) -> int:
        """Bytes kept from one task to the next, without the network."""
        values = [getattr(self, name) for name, (_, counted) in self._kept.items() if counted]
        return sum(getattr(leaf, "nbytes", 0) for leaf in _leaves(values))


class Method(Stateful):
    """The base class of all methods: W ← W − lr·∇W on the current task. A subclass overrides the parts that differ.

    Trainers capture `step` into a CUDA graph, so a step must stay on the device, without `.item()` and without a Python
    branch on a tensor, and must change tensors in place. Declare state that lives longer than a step with `keep`.

    Args:
        network: The network to train, on its device.
        lr: The initial learning rate.
        anneal: Whether the learning rate falls to almost 0 in every task, by half a cosine over the task's epochs. Train a
            fixed number of epochs then.

    Raises:
        ValueError: If the method has phases and should be annealed, or if it needs the task at test time, and the network
            has one head for all tasks.

    Example:
        >>> class WithoutOutliers(Method):
        ...     def loss(self, x, y):
        ...         return super().loss(x, y).clamp(max=1)
    """

    name = ""
    needs_task = False  # whether `logits` must be given the right task, so that the stream must have one head per task
    freezes_norms = False  # whether norms are learnt in the first task only, as in the paper (Sec. 6)
    logits_recordable = True  # whether validation can be captured too, because `logits` follows the rules of `step`
    capacity = 1.0  # parameters in use, relative to the network that training started with
    label_smoothing = 0.0  # the share of a label that goes to all classes evenly
    plain_sgd_only = False  # whether the method refuses other optimizers
    has_phases = (
        False  # whether a task has phases with rates of their own, so that one rate cannot fall over all of them
    )
    lr: Tensor  # a tensor, because captured steps must follow its changes
    network: Network
    optimizer_state: list[Tensor]

    def __init__(
        self, network: Network, *, lr: Annotated[float, number(0, 10, above=True)] = 0.01, anneal: bool = False
    ) -> None:
        if self.needs_task and not network.multi_head:
            raise ValueError(
                f"{self.name or type(self).__name__} needs the task at test time, but this stream has one head for all "
                "tasks. Choose a stream with one head per task, or another method."
            )
        if anneal and self.has_phases:
            raise ValueError("this method sets the rates of a task's phases itself. Remove --set anneal.")
        self.device = next(network.parameters()).device
        self.base_size = sum(p.numel() for p in network.parameters())  # what `capacity` is relative to
        self.task = 0
        self.anneal = anneal
        self.uses_plain_sgd = True
        # task → tensors of the network that the task has for itself
        self.own_tensors: dict[str, dict[str, Tensor]] = {}
        self.norms = [module for module in network.modules() if is_norm(module)] if self.freezes_norms else []
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
        check_hooks(cls)

    def use_optimizer(self, name: str, **options: Any) -> None:
        """Replaces plain SGD by one of `OPTIMIZERS` with its options. Its state is new in every task."""
        if self.plain_sgd_only:
            raise ValueError(f"this method works only with plain SGD, not with {name}. Remove --set optimizer.")
        self.uses_plain_sgd = False
        self._make_optimizer = OPTIMIZERS[name](**checked(OPTIMIZERS[name], options, f"the optimizer {name}"))

    def curriculum(self, stream: Stream) -> Sequence[Task]:
        """Returns the tasks to learn, in order."""
        return stream.tasks

    def start(self, task: int) -> None:
        """Prepares a task, before its first step."""
        self.task = task
        self.network.train()
        for norm in self.norms if task > 0 else ():
            keep_in_eval_mode(norm)
        self.refresh()
        if self._make_optimizer is not None:
            self._optimizer = self._make_optimizer(self.parameters, self.lr)
            self.optimizer_state = initial_state(self._optimizer)

    def order(self, train: Split, batch: int) -> Tensor:
        """Returns the rows of `train` in the order in which an epoch visits them."""
        return torch.randperm(len(train), device=self.device)

    def validation(self, task: int, valid: Split) -> dict[int, Split]:
        """Returns the validation data, by the task whose `logits` are used for it."""
        return {task: valid} if len(valid) else {}

    def on_epoch_start(self, epoch: int, epochs: int, steps: int) -> None:
        """Prepares an epoch, given its number, the largest number of epochs, and its number of steps."""

    def on_epoch_end(self) -> bool | None:
        """Runs after each epoch. If it returns True, a rate that is not annealed starts again at its first value."""
        return None

    def finish(self, task: int, train: Split) -> None:
        """Remembers a task, after its last step. Its training data is not available later."""

    def logits(self, x: Tensor, task: int) -> Tensor:
        """Returns the outputs at test time."""
        own = self.own_tensors.get(str(task))
        logits: Tensor = functional_call(self.network, own, (x, task)) if own else self.network(x, task)
        return logits

    # Each step is SGD with every layer's gradient multiplied by `layer_projections()[layer]`, a matrix that is constant
    # within a task. Small fully connected networks then take it without autograd (remnant.accelerated). With "low-rank-sgd",
    # layers compute with W + U·V, and the matrices are constant until `step_version` changes.
    fast_form: str | None = "projected-sgd"
    step_version = 0
    low_rank_parts: Mapping[str, tuple[Tensor, Tensor]] = {}  # layer → U (outputs × r) and V (r × inputs)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """Updates the weights from one batch and returns its loss."""
        loss = self.loss(x, y)
        self.apply_gradients(self.gradients(loss))
        return loss.detach()

    def layer_projections(self) -> dict[str, Tensor]:
        """Returns the matrices of the fast form, by layer. A layer without one keeps its whole gradient."""
        return {}

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns the loss of a batch: the cross-entropy of the current task's head."""
        return F.cross_entropy(self.network(x, self.task), y, label_smoothing=self.label_smoothing)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that this task trains: the body and the task's own head."""
        heads = set(self.network.heads) - {self.network.head_of(self.task)} if self.network.multi_head else ()
        return trainable(self.network, *heads, *(self.norms if self.task > 0 else ()))

    def shared_parameters(self) -> dict[str, nn.Parameter]:
        """Returns the parameters that all tasks train, by name: the body without fixed norms, and a single head."""
        own = parameters_of(*self.norms, *(self.network.heads if self.network.multi_head else ()))
        return {name: p for name, p in self.network.named_parameters() if p not in own and p.requires_grad}

    def gradients(self, loss: Tensor) -> dict[Tensor, Tensor]:
        """Returns the gradients that the step uses, by parameter."""
        parameters = self.parameters
        return dict(zip(parameters, torch.autograd.grad(loss, parameters), strict=True))

    @torch.no_grad()
    def apply_gradients(self, gradients: dict[Tensor, Tensor]) -> None:
        """Steps: W ← W − lr·∇W for all parameters at once, or a step of the chosen optimizer."""
        # Fused kernels expect a gradient to have the memory layout of its parameter.
        aligned = [g if g.stride() == p.stride() else torch.empty_like(p).copy_(g) for p, g in gradients.items()]
        if self._optimizer is None:
            plain_sgd(list(gradients), aligned, [], lr=self.lr)
            return
        for parameter, gradient in zip(gradients, aligned, strict=True):
            parameter.grad = gradient
        self._optimizer.step()
        self._optimizer.zero_grad()

    def ranks(self) -> dict[str, list[int]]:
        """Returns, per layer, how many directions each task has added. Empty for methods that keep no directions."""
        return {}


def parameters_of(*modules: nn.Module) -> set[nn.Parameter]:
    return {parameter for module in modules for parameter in module.parameters()}


def trainable(network: nn.Module, *but: nn.Module) -> list[nn.Parameter]:
    """Returns the parameters of a network that may train, without those of some of its modules."""
    idle = parameters_of(*but)
    return [p for p in network.parameters() if p not in idle and p.requires_grad]


def _leaves(value: Any) -> Iterator[Any]:
    """The tensors, numbers and objects inside lists, dicts and modules."""
    if isinstance(value, nn.Module):
        yield from (*value.parameters(), *value.buffers())
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves(part)
    else:
        yield value


@torch.no_grad()
def _restored(own: Any, saved: Any, device: torch.device) -> Any:
    if hasattr(own, "load_state_dict"):
        own.load_state_dict(saved)
        return own
    if isinstance(saved, Tensor):
        same_shape = isinstance(own, Tensor) and own.shape == saved.shape
        return own.copy_(saved) if same_shape else saved.to(device, copy=True)
    if isinstance(saved, dict):
        return {key: _restored((own or {}).get(key), value, device) for key, value in saved.items()}
    if isinstance(saved, list | tuple):
        return list(_restored(dict(enumerate(own or ())), dict(enumerate(saved)), device).values())
    return saved
