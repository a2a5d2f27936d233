"""Measures how far the weights have moved inside the remembered subspaces."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import LeakError
from ..protected import Anchors, ProtectedWeight
from ..record.recorder import Grams


@dataclass(frozen=True)
class LayerCheck:
    """The result for one layer, frozen parameter or buffer.

    Attributes:
        name: Its name in the model.
        leak: ‖(W−W₀)·M‖ / ‖W−W₀‖ since the task began; 0 or 1 for a frozen parameter or a buffer.
        rounding: The leak that the weight's own number type can explain.
        drift: ‖(W−W₀)·x‖ / ‖W₀·x‖ over the batches given, the paper's interference activation; None without batches.
        buffer: Whether it is a buffer.
    """

    name: str
    leak: float
    rounding: float
    drift: float | None = None
    buffer: bool = False


@dataclass(frozen=True)
class Verification:
    """The result of `GPM.verify`. `print` it for a table.

    Attributes:
        layers: One `LayerCheck` per protected layer, frozen parameter and buffer.
        tolerance: The largest leak that is accepted.
    """

    layers: tuple[LayerCheck, ...]
    tolerance: float

    @property
    def leaking(self) -> tuple[LayerCheck, ...]:
        """The layers whose leak exceeds the tolerance and the rounding of their number type."""
        return tuple(x for x in self.layers if not x.leak <= max(self.tolerance, x.rounding))

    @property
    def worst(self) -> float:
        """The largest leak."""
        return max((x.leak for x in self.layers), default=0.0)

    def raise_if_leaking(self) -> None:
        """Raises a LeakError that names the leaking layers, if there are any."""
        messages = []
        if weights := [f"{x.name!r} ({x.leak:.1e})" for x in self.leaking if not x.buffer]:
            messages.append(
                f"Protected weights moved inside the remembered subspaces, beyond {self.tolerance:g} of their change: "
                f"{', '.join(weights)}. Is every optimizer that trains them attached? Were the weights changed in another "
                "way (loaded, averaged)?"
            )
        if buffers := [x.name for x in self.leaking if x.buffer]:
            messages.append(buffers_changed(buffers))
        if messages:
            raise LeakError(" ".join(messages))

    def __str__(self) -> str:
        if not self.layers:
            return "No task is remembered yet, so nothing could have moved."
        width = max(5, *(len(x.name) for x in self.layers))
        lines = [f"{'layer':<{width}}  leak      drift"]
        for x in self.layers:
            drift = "–" if x.drift is None else f"{x.drift:.1e}"
            lines.append(f"{x.name:<{width}}  {x.leak:.1e}   {drift}")
        return "\n".join(lines)


def buffers_changed(names: list[str]) -> str:
    return (
        f"Buffers that the forward pass reads have changed since the task began, and old outputs with them: "
        f"{', '.join(map(repr, names))}. No optimizer moves buffers: the module or your own code did. A module that is kept "
        'in eval mode (norm="freeze", unsupported="freeze") must leave them alone; exclude it by name to accept the change.'
    )


def check_weight(weight: ProtectedWeight, anchors: Anchors, grams: Grams | None) -> LayerCheck:
    inside, moved, size = (float(value) for value in weight.leak(anchors))
    if not moved:
        return LayerCheck(weight.name, 0.0, 0.0, None if grams is None else 0.0)
    rounding = torch.finfo(weight.view.weight.dtype).eps * size / moved
    drift = None if grams is None else _drift(weight, anchors, grams)
    return LayerCheck(weight.name, inside / moved, rounding, drift)


def check_still(name: str, now: Tensor, then: Tensor, *, buffer: bool = False) -> LayerCheck:
    """Checks a frozen parameter or a buffer, which must not change at all."""
    return LayerCheck(name, 0.0 if torch.equal(now, then.to(now)) else 1.0, 0.0, buffer=buffer)


def _drift(weight: ProtectedWeight, anchors: Anchors, grams: Grams) -> float:
    """‖ΔW·X‖ / ‖W₀·X‖ from the Gram matrix G alone: ‖ΔW·X‖² = tr(ΔW·G·ΔWᵀ)."""
    gram = grams[weight.name].matrix()
    change = weight.difference(anchors).to(gram)
    start = weight.stack(anchors).to(gram)

    def energy(stack: Tensor) -> float:
        product = stack * gram if weight.view.one_hot else stack @ gram
        return float((product * stack).sum().clamp(min=0))

    before = energy(start)
    return (energy(change) / before) ** 0.5 if before else 0.0
