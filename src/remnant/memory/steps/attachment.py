"""Keeps W·M = W₀·M in every step of an optimizer, through the optimizer's own hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

import torch
from torch import nn
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam
from torch.optim.lr_scheduler import LRScheduler

from ..audit.preconditions import check_model
from ..weights.own_parts import PART
from .optimizer_weights import OptimizerWeights
from .turn_taking import TurnTaking

if TYPE_CHECKING:
    from .step_methods import StepMethods

ROUNDING_STEPS = 8  # the rounding of that many plain SGD steps adds up to less than one unit in the last place
EXACT = {torch.float32, torch.float64}
ATTACHMENTS: WeakSet[Attachment] = WeakSet()  # of all memories


class Attachment:
    """Projects the gradients before each step of an optimizer and restores the weights after it."""

    def __init__(self, optimizer: Optimizer, memory: StepMethods) -> None:
        self._optimizer, self._memory, self._constraint = ref(optimizer), ref(memory), memory._constraint
        self._turns: TurnTaking = memory._attached[0]._turns if memory._attached else TurnTaking(self._constraint)
        protected = set(memory._protection.parameters)
        for other in list(ATTACHMENTS):
            if other._memory() is None:
                other.remove()
            elif other.optimizer is not None and other._memory() is not memory:
                theirs = other._constraint.protection.parameters
                if other.optimizer is not optimizer and protected.isdisjoint(theirs):
                    continue
                raise ValueError(
                    "This optimizer or these weights are attached to another memory. Two memories would undo each other's "
                    "steps: call detach() on the other one first."
                )
        self.check()
        # A step may be compiled as a whole. The hooks depend on the task, so they are left out of its graph.
        before, after = torch.compiler.disable(self._before_step), torch.compiler.disable(self._after_step)
        self._hooks = [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]
        self._constraint.optimizers.add(optimizer)
        ATTACHMENTS.add(self)

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer, or None if nobody uses it any more."""
        return self._optimizer()

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        ATTACHMENTS.discard(self)
        if (optimizer := self.optimizer) is not None:
            self._constraint.optimizers.discard(optimizer)
            self._turns.leave(optimizer)

    def check(self) -> None:
        """Refuses an optimizer of another model, or of a selected parameter that is new or was frozen before."""
        if (optimizer := self.optimizer) is None:
            return
        trained = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        protection = self._constraint.protection
        named = protection.named_parameters()
        if trained.isdisjoint(named.values()):
            raise ValueError(
                "This optimizer trains none of the model's parameters. Build it from the parameters of the memory's model "
                "(after any wrapper that replaces them), then attach it."
            )
        check_model(protection)
        new = trained.difference(protection.parameters, protection.free.values())
        for name, parameter in named.items():
            if parameter in new and parameter.requires_grad and protection.selects(name):
                raise ValueError(
                    f"{name!r} did not exist or was not trainable when the memory was made, so it is not protected. Exclude "
                    "it by a pattern (new heads may be added under it at any time), or make a new memory."
                )
        self.parts_are_trained = False
        self._identities = _identities(optimizer)
        self._untrained = [parameter for parameter in trained if not parameter.requires_grad]
        self._types = {parameter.dtype for parameter in trained}
        self._trained, self._weights = trained, OptimizerWeights(self._constraint, trained)
        self._turns.join(optimizer, trained)

    def _check_parts(self) -> None:
        """Refuses to train a weight whose own part no attached optimizer trains."""
        memory = self._memory()
        together = [*(memory._attached if memory is not None else ()), self]
        trained = {parameter for each in together if each.optimizer is not None for parameter in each._trained}
        for weight in self._constraint.protection.weights:
            parts = [part for site in weight.sites if (part := site.module._modules.get(PART)) is not None]
            if weight.view.weight in trained and any(p not in trained for part in parts for p in part.parameters()):
                raise ValueError(
                    f"The optimizer trains {weight.name!r} but not its own part (own_rank), which was added when the memory "
                    "was made. Build the optimizer after the memory, from model.parameters(), or attach the part's own."
                )
        self.parts_are_trained = True

    def _project(self) -> None:
        if self._constraint.is_projected(self._trained):
            return
        if not self._weights.is_current():
            self._weights = OptimizerWeights(self._constraint, self._trained)
        self._weights.project()

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._constraint.check_steps()
        # A new parameter, or one that was frozen before, may be unprotected.
        if _identities(optimizer) != self._identities or any(p.requires_grad for p in self._untrained):
            self.check()
        if not self.parts_are_trained and self._constraint.protection.own_parts:
            self._check_parts()
        # args[0] is the optimizer. A closure computes gradients inside the step, so they must be projected in there.
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            if not self._turns.before_step(optimizer):
                self._project()
            return None
        self._turns.end_turns()

        def projected() -> Any:
            with torch.enable_grad():
                loss = closure()
            self._project()
            return loss

        if len(args) > 1:
            return (args[0], projected, *args[2:]), kwargs
        return args, {**kwargs, "closure": projected}

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._constraint.anchors:
            return
        self._constraint.steps += 1
        self._constraint.unmark(self._trained)
        if self._turns.after_step(optimizer):
            return
        if self._weights.anchors is not self._constraint.anchors:  # a closure that was not called has projected nothing
            self._weights = OptimizerWeights(self._constraint, self._trained)
        kind, groups = type(optimizer), optimizer.param_groups
        # A hook after ours, such as clipping or noise, may have changed the projected gradients or the weights.
        hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
        last = [next(reversed(known)) for known in hooks] == [hook.id for hook in self._hooks]
        plain = kind is SGD and not any(group["momentum"] or group["weight_decay"] for group in groups)
        # A plain step is a multiple of the projected gradient. A weight and its bias are projected together, so they need
        # one learning rate. Narrower types' rounding would leak.
        along_gradient = plain and last and len({group["lr"] for group in groups}) == 1 and self._types <= EXACT
        # Several optimizers usually take turns. In every eighth cycle all of them restore against rounding.
        cycle = self._constraint.steps // len(self._constraint.optimizers)
        self._weights.restore(
            along_gradient=along_gradient and cycle % ROUNDING_STEPS != 0,
            only_rows=last and (plain or kind in (SparseAdam, Adagrad)),
        )


def _identities(optimizer: Optimizer) -> list[int]:
    return [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]


def hooked_optimizers(optimizer: Any) -> list[Optimizer]:
    """Returns the optimizers in a chain of wrappers whose `step` torch lets us hook: an optimizer, and what it wraps.

    Raises:
        TypeError: If it is not an optimizer.
        ValueError: If it takes its steps in another way than by `step`.
    """
    found: list[Optimizer] = []
    seen: list[Any] = []
    inner = optimizer
    while (
        hasattr(inner, "param_groups") and callable(getattr(inner, "step", None)) and not any(inner is x for x in seen)
    ):
        seen.append(inner)
        if isinstance(inner, Optimizer) and hasattr(inner, "_optimizer_step_pre_hooks"):
            found.append(inner)
        # accelerate and others call it `optimizer`, sharpness-aware minimisation `base_optimizer`.
        inner = getattr(inner, "optimizer", getattr(inner, "base_optimizer", None))
    if not found:
        raise TypeError(f"attach takes a torch optimizer, {_instead_of(optimizer)}.")
    if hasattr(optimizer, "second_step") and len(seen) == 1:
        raise ValueError(
            f"{type(optimizer).__name__} steps by first_step and second_step and has no base_optimizer, so the memory "
            "cannot protect its steps. Call memory.project() before second_step() and memory.restore() after it."
        )
    return found


def _instead_of(value: object) -> str:
    if isinstance(value, nn.Module):
        return "not a model: memory.attach(torch.optim.SGD(model.parameters(), lr=0.1))"
    if isinstance(value, LRScheduler):
        return "not a learning-rate scheduler: memory.attach(scheduler.optimizer)"
    return f"not {value!r}: memory.attach(torch.optim.SGD(model.parameters(), lr=0.1))"
