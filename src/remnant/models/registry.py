"""Networks by name, for recipes and the command line."""

from collections.abc import Sequence
from typing import Any

import torch

from remnant.options import OptionError, checked
from remnant.registry import Registry

from .alexnet import AlexNet
from .lenet import LeNet
from .mlp import MLP
from .network import Network
from .resnet import ResNet18

MODELS: Registry[type[Network]] = Registry("network", "remnant.networks")
MODELS["mlp"] = MLP
MODELS["alexnet"] = AlexNet
MODELS["lenet"] = LeNet
MODELS["resnet18"] = ResNet18


def build(
    name: str,
    *,
    input_shape: Sequence[int],
    classes: int | Sequence[int],
    seed: int | None = None,
    **options: Any,
) -> Network:
    """Builds a network.

    Args:
        name: a name in `MODELS`, an entry point of an installed package, or `path/to/file.py:Name`.
        input_shape: the shape of one input, without the batch.
        classes: a number for one head, or one number per task for a head each.
        seed: fixes the initial weights and leaves torch's random state alone. Without it torch's generator decides.
        options: the network's own options, such as `width` and `norm`.

    Raises:
        UnknownNameError: no network has this name.
        OptionError: the network has no such option, or the option does not take this value.

    Example:
        >>> network = build("mlp", input_shape=(1, 28, 28), classes=10, seed=0, hidden=[100, 100])
    """
    make = MODELS[name]
    options = checked(make, options, name)
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed the GPU's generator
        network = make(input_shape, classes, **options)
    if not isinstance(network, Network):
        raise OptionError(f"{name} made a {type(network).__name__}, which is no subclass of remnant.models.Network.")
    return network
