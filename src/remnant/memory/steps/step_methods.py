"""The methods of GPM that act on each step: `attach`, `detach`, `project`, `clip_grad_norm_` and `restore`."""

from collections.abc import Iterable
from typing import Any, TypeVar

from torch import Tensor, nn

from ..audit.preconditions import check_model
from ..audit.state import Buffers
from ..weights.discovery import Protection, clean, unwrap
from .attachment import Attachment, hooked_optimizers
from .constraint import Constraint

AnyOptimizer = TypeVar("AnyOptimizer")


class StepMethods:
    """Keeps W·M = W₀·M while a task is trained: by the hooks of an optimizer, or in a loop that calls the methods itself."""

    _protection: Protection
    _constraint: Constraint
    _buffers: Buffers
    _attached: list[Attachment]

    def attach(self, optimizer: AnyOptimizer) -> AnyOptimizer:
        """Makes every step of an optimizer keep W·M = W₀·M (Algorithm 1, line 9). Attaching it again changes nothing.

        Args:
            optimizer: A torch optimizer, or a wrapper that holds one as `optimizer` or `base_optimizer` (accelerate,
                sharpness-aware minimisation). The memory holds only a weak reference to it.

        Returns:
            The same optimizer.

        Raises:
            TypeError: If it is not an optimizer.
            ValueError: If it trains none of the model's parameters, trains a parameter that was added or unfrozen after the
                memory was made, or is attached to another memory.
        """
        check_model(self._protection)
        self._attached = [attachment for attachment in self._attached if attachment.optimizer is not None]
        for found in hooked_optimizers(optimizer):
            if not any(attachment.optimizer is found for attachment in self._attached):
                self._attached.append(Attachment(found, self))
        if self._constraint.anchors:
            self._buffers.hold()
        return optimizer

    def detach(self, optimizer: Any = None) -> None:
        """Undoes `attach` for one optimizer, or for all. After the last one, normalisation layers train again."""
        chosen = None if optimizer is None else hooked_optimizers(optimizer)
        for attachment in self._attached[:]:
            if chosen is None or any(attachment.optimizer is found for found in chosen):
                attachment.remove()
                self._attached.remove(attachment)
        for attachment in self._attached:
            attachment.parts_are_trained = False  # perhaps by the one that is gone
        if not self._attached:
            self._buffers.release()

    def project(self) -> None:
        """Removes the remembered directions from every `.grad`: ∇W ← ∇W − (∇W·M)·Mᵀ (Eq. 6–7).

        Call it before a hand-written step. It is exact for plain SGD; after any other step, call `restore`.
        """
        self._constraint.project()
        self._constraint.mark_projected()

    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
        *,
        parameters: Iterable[Tensor] | None = None,
    ) -> Tensor:
        """Projects every `.grad`, then clips their norm. Clipping first would leave little for the new task.

        Args:
            max_norm: The largest norm. This and the next three are as in `torch.nn.utils.clip_grad_norm_`.
            norm_type: The type of the norm.
            error_if_nonfinite: Whether to raise an error if the norm is not finite.
            foreach: Whether to use torch's faster implementation; by default if it is available.
            parameters: The parameters to clip; by default all of the model's.

        Returns:
            The norm of the projected gradients before they were clipped.
        """
        self.project()
        chosen = self._protection.model.parameters() if parameters is None else parameters
        norm = nn.utils.clip_grad_norm_(chosen, max_norm, norm_type, error_if_nonfinite, foreach)
        self._constraint.mark_projected()
        return norm

    def restore(self, model: nn.Module | None = None) -> None:
        """Restores W·M = W₀·M in every protected weight: W ← W₀ + (W − W₀)(I − M·Mᵀ).

        Call it after a hand-written step that is not plain SGD.

        Args:
            model: A copy of the model to restore instead, such as an average of its weights (EMA, SWA).

        Raises:
            ValueError: If a protected parameter is missing in the copy or has another shape there.
        """
        self._constraint.check_steps()
        if model is None:
            return self._constraint.restore()
        if not isinstance(model, nn.Module):
            raise TypeError(f"restore takes a copy of the memory's model, not a {type(model).__name__}.")
        theirs = {clean(name): parameter for name, parameter in unwrap(model).named_parameters()}
        ours = {parameter: name for name, parameter in self._protection.named_parameters().items()}
        needed = {parameter: ours[parameter] for parameter in self._protection.parameters}
        for parameter, name in needed.items():
            if name not in theirs or theirs[name].shape != parameter.shape:
                raise ValueError(
                    f"restore takes a copy of the memory's model, and this one has no {name!r} of the same shape."
                )
        self._constraint.restore({parameter: theirs[name].detach() for parameter, name in needed.items()})
