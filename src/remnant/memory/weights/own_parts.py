"""Own parts: each task adds a matrix U·V of low rank r to the weights of its layers, trains it, and keeps it.

A full layer can learn nothing more, and a nearly full one only little. With an own part, task t computes with
W·M_t·M_tᵀ + U_t·V_t when it is recalled, and no later task moves that.
"""

import sys
from collections.abc import Iterable, Mapping
from math import sqrt
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.hooks import RemovableHandle

PART = "own_part"  # the name of the submodule
CONVOLUTIONS: dict[type, type] = {  # layer → the layer that combines its channels
    nn.Conv1d: nn.Conv1d,
    nn.Conv2d: nn.Conv2d,
    nn.Conv3d: nn.Conv3d,
    nn.ConvTranspose1d: nn.Conv1d,
    nn.ConvTranspose2d: nn.Conv2d,
    nn.ConvTranspose3d: nn.Conv3d,
}


class OwnPart(nn.Module):
    """x ↦ U·(V·x), the shape of a layer's output. `down` is V, the same kind of layer with r outputs, and `up` is U."""

    def __init__(self, layer: Any, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.down: Any
        self.up: Any
        like: Any = {"bias": False, "device": layer.weight.device, "dtype": layer.weight.dtype}
        if type(layer) is nn.Linear:
            self.down = nn.Linear(layer.in_features, rank, **like)
            self.up = nn.Linear(rank, layer.out_features, **like)
        else:
            names = ["kernel_size", "stride", "padding", "dilation", "padding_mode"]
            names += ["output_padding"] if isinstance(layer, nn.modules.conv._ConvTransposeNd) else []
            geometry = {name: getattr(layer, name) for name in names}
            self.down = type(layer)(layer.in_channels, rank, **geometry, **like)
            self.up = CONVOLUTIONS[type(layer)](rank, layer.out_channels, 1, **like)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Takes what the layer takes: its input, and for a transposed convolution its `output_size`."""
        output: Tensor = self.up(self.down(*args, **kwargs))
        return output


def add_to_output(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor:
    """A forward hook. It finds the part by its name, so that the copy of a model uses the copy of the part."""
    added: Tensor = output + layer.own_part(*args, **kwargs)
    return added


def can_have_part(layer: nn.Module) -> bool:
    """Whether it is a linear layer or a convolution. Subclasses may compute something else, and have none."""
    return type(layer) is nn.Linear or type(layer) in CONVOLUTIONS


def add_own_parts(layers: Mapping[nn.Module, str], rank: int) -> tuple[list[OwnPart], dict[nn.Module, RemovableHandle]]:
    """Gives each linear layer and convolution a part, or finds the one that it has, as in a copied model.

    Returns all parts, and the hooks of the layers that had none.
    """
    able = [layer for layer in layers if can_have_part(layer)]
    for layer in able:
        if (found := layer._modules.get(PART)) is not None and found.rank != rank:
            raise ValueError(
                f"{layers[layer]!r} has an own part of rank {found.rank}: make the memory with that own_rank."
            )
    missing = [layer for layer in able if PART not in layer._modules]
    for layer, part in [(layer, OwnPart(layer, rank)) for layer in missing]:
        layer.add_module(PART, part)
    hooks = {layer: layer.register_forward_hook(add_to_output, with_kwargs=True) for layer in missing}
    if missing and "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # code that was compiled before leaves the parts out
    restart([cast(OwnPart, layer._modules[PART]) for layer in missing], task=0)
    return [cast(OwnPart, layer._modules[PART]) for layer in able], hooks


@torch.no_grad()
def restart(parts: Iterable[OwnPart], task: int, optimizers: Iterable[Optimizer] = ()) -> None:
    """Starts the parts of a new task: U = 0, so that the outputs do not change, and V random, the same in all processes.

    The optimizers forget the old parts' momentum.
    """
    generator = torch.Generator().manual_seed(task)
    for part in parts:
        down = part.down.weight
        part.up.weight.zero_()
        spread = sqrt(part.rank / down.numel())  # one over the root of V's inputs
        down.copy_(torch.randn(down.shape, generator=generator, device="cpu") * spread)
        for optimizer in optimizers:
            for weight in (down, part.up.weight):
                state = optimizer.state.pop(weight, {})
                if isinstance(optimizer, SGD) and state.get("momentum_buffer") is not None:
                    # Fused SGD refuses weights that have momentum beside others that have none.
                    optimizer.state[weight] = {"momentum_buffer": torch.zeros_like(weight)}
