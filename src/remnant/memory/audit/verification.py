"""Proof that nothing remembered has moved."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import LeakError
from ..protected import Anchors, ProtectedWeight
from ..record.recorder import Grams


@dataclass(frozen=True)
class LayerCheck:
    """`leak`: ‖(W−W₀)·M‖/‖W−W₀‖ since the task began. `rounding`: how much of that the weight's own type accounts for.

    `drift`: ‖(W−W₀)·x‖/‖W₀·x‖ over the batches given, the paper's interference activation; None without batches.
    `buffer`: it is no layer but a buffer, which leaks wholly or not at all.
    """

    name: str
    leak: float
    rounding: float
    drift: float | None = None
    buffer: bool = False


@dataclass(frozen=True)
class Verification:
    layers: tuple[LayerCheck, ...]
    tolerance: float

    @property
    def leaking(self) -> tuple[LayerCheck, ...]:
        return tuple(x for x in self.layers if not x.leak <= max(self.tolerance, x.rounding))

    @property
    def worst(self) -> float:
        return max((x.leak for x in self.layers), default=0.0)

    def raise_if_leaking(self) -> None:
        said = []
        if weights := [x for x in self.leaking if not x.buffer]:
            named = ", ".join(f"{x.name!r} ({x.leak:.1e})" for x in weights)
            said.append(
                f"Protected weights moved inside what is remembered, beyond {self.tolerance:g} of their change: {named}. "
                "Is every optimizer that trains them attached, and were the weights left alone otherwise (loaded, averaged)?"
            )
        if buffers := [x.name for x in self.leaking if x.buffer]:
            said.append(buffers_changed(buffers))
        if said:
            raise LeakError(" ".join(said))

    def __str__(self) -> str:
        if not self.layers:
            return "No task is remembered yet, so there is nothing that could have moved."
        width = max(5, *(len(x.name) for x in self.layers))
        lines = [f"{'layer':<{width}}  leak      drift"]
        for x in self.layers:
            drift = "–" if x.drift is None else f"{x.drift:.1e}"
            lines.append(f"{x.name:<{width}}  {x.leak:.1e}   {drift}")
        return "\n".join(lines)


def buffers_changed(names: list[str]) -> str:
    return (
        f"Buffers that the forward pass reads changed since the task began, and old outputs with them: "
        f"{', '.join(map(repr, names))}. No optimizer moves these: the module does, or code of yours. Held in eval mode "
        '(norm="freeze", unsupported="freeze") the module must leave them alone; exclude it by name to accept the change.'
    )


def check_weight(weight: ProtectedWeight, anchors: Anchors, grams: Grams | None) -> LayerCheck:
    inside, moved, size = (float(value) for value in weight.leak(anchors))
    if not moved:
        return LayerCheck(weight.name, 0.0, 0.0, None if grams is None else 0.0)
    rounding = torch.finfo(weight.view.weight.dtype).eps * size / moved
    drift = None if grams is None else _drift(weight, anchors, grams)
    return LayerCheck(weight.name, inside / moved, rounding, drift)


def check_still(name: str, now: Tensor, then: Tensor, *, buffer: bool = False) -> LayerCheck:
    """A parameter that is held fixed leaks wholly or not at all; so does a buffer."""
    return LayerCheck(name, 0.0 if torch.equal(now, then.to(now)) else 1.0, 0.0, buffer=buffer)


def _drift(weight: ProtectedWeight, anchors: Anchors, grams: Grams) -> float:
    """‖ΔW·X‖ from the Gram alone: ‖ΔW·X‖² = tr(ΔW·G·ΔWᵀ)."""
    gram = grams[weight.name].matrix()
    change = weight.difference(anchors).to(gram)
    start = weight.stack(anchors).to(gram)

    def energy(stack: Tensor) -> float:
        seen = stack * gram if weight.view.one_hot else stack @ gram
        return float((seen * stack).sum().clamp(min=0))

    before = energy(start)
    return (energy(change) / before) ** 0.5 if before else 0.0
