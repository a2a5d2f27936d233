"""LoRA adapters of peft (Hu et al., 2022): A stays outside the memory of its layer's inputs, and B is free.

An adapted layer computes W·x + s·B·A·x. While A·M = 0, no value of B changes that for an input in M. When a task ends, its
adapter is added to W, and the next one starts with B = 0 and an A outside M (compare InfLoRA; Liang & Li, 2024).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import torch
from torch import Tensor, nn

from .protected import Weights

PEFT = "peft.tuners.lora.layer."  # a name, since peft need not be installed
SUPPORTED = {PEFT + kind for kind in ("Linear", "Conv1d", "Conv2d", "Conv3d")}


@dataclass(frozen=True, eq=False)
class Adapter:
    """One adapter of one layer: W + s·B·A."""

    layer: Any
    key: str  # what peft calls the adapter, such as "default"

    @property
    def down(self) -> Tensor:
        """A, from the layer's inputs to the r hidden numbers."""
        weight: Tensor = self.layer.lora_A[self.key].weight
        return weight

    @property
    def up(self) -> Tensor:
        """B, from the hidden numbers to the layer's outputs."""
        weight: Tensor = self.layer.lora_B[self.key].weight
        return weight

    @property
    def base(self) -> Tensor:
        """W."""
        weight: Tensor = self.layer.get_base_layer().weight
        return weight


def adapters_of(model: nn.Module, selects: Callable[[str], bool]) -> tuple[list[Adapter], list[str]]:
    """Returns the adapters that train in the selected layers, and a sentence for each layer whose adapters must be refused."""
    users = Counter[Any](parameter for _, parameter in model.named_parameters(remove_duplicate=False))
    adapters, refused = [], []
    for name, layer in model.named_modules():
        own = [p for n, p in layer.named_parameters(prefix=name) if ".lora_" in n and p.requires_grad and selects(n)]
        if not own or not any(_name(kind) == PEFT + "LoraLayer" for kind in type(layer).__mro__):
            continue
        if reason := _reason_against(layer, users):
            refused.append(f"{name!r} {reason}")
        else:
            adapters += [Adapter(layer, key) for key, down in layer.lora_A.items() if down.weight.requires_grad]
    return adapters, refused


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _reason_against(layer: Any, users: Counter[Any]) -> str:
    """Says why the adapters of a layer cannot be protected or cannot be merged; "" if they can."""
    base = layer.get_base_layer()
    geometry = [getattr(base, name, usual) for name, usual in (("groups", 1), ("padding_mode", "zeros"))]
    reasons = {
        f"is a {type(layer).__name__}, and only adapters of linear layers and convolutions that are not quantised can be "
        "merged exactly": _name(type(layer)) not in SUPPORTED,
        "uses DoRA or another variant of LoRA, which changes the layer for every input": bool(layer.lora_variant),
        "is merged: call model.unmerge_adapter() first": layer.merged,
        "has a bias in B (lora_bias=True), which changes the layer for every input": any(layer.lora_bias.values()),
        "trains B but not A, whose inputs would not be remembered": any(
            up.weight.requires_grad and not layer.lora_A[key].weight.requires_grad for key, up in layer.lora_B.items()
        ),
        "has groups or a padding that its adapter does not have": geometry != [1, "zeros"],
        "computes or shares its weight, so the adapter cannot be added to it": users[getattr(base, "weight", None)]
        != 1,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def merge(adapter: Adapter) -> None:
    """W ← W + s·B·A, and B ← 0."""
    base = adapter.base
    base += adapter.layer.get_delta_weight(adapter.key).to(base)
    adapter.up.zero_()


@torch.no_grad()
def restart(adapters: Iterable[Adapter], weights: Weights, task: int) -> None:
    """Adds each adapter to its layer's weight, and starts the next one: B = 0, and A random outside the memory.

    The outputs stay the same for every input. All processes draw the same A.
    """
    protected = {weight.view.weight: weight for weight in weights}
    generator = torch.Generator().manual_seed(task)
    for adapter in adapters:
        down, weight = adapter.down, protected[adapter.down]
        merge(adapter)
        remaining = max(weight.capacity - weight.rank, 1) / weight.capacity
        # The projection below shortens A's rows. With this bound they end as long as those of a new layer.
        bound = 1 / sqrt(prod(down.shape[1:]) * remaining)
        down.copy_(torch.empty(down.shape, device="cpu").uniform_(-bound, bound, generator=generator))
        weight.restore({down: torch.zeros_like(down)})  # leaves A·(I − M·Mᵀ)
