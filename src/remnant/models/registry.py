"""Networks by name, for recipes and the command line."""

from collections.abc import Sequence
from inspect import Parameter, signature

import torch

from .alexnet import AlexNet
from .lenet import LeNet
from .mlp import MLP
from .names import no_such
from .network import Network
from .resnet import ResNet18

MODELS: dict[str, type[Network]] = {"mlp": MLP, "alexnet": AlexNet, "lenet": LeNet, "resnet18": ResNet18}
"""Every network `build` knows; add your own subclass of `Network` under its name."""


def build(
    name: str,
    *,
    input_shape: Sequence[int],
    classes: int | Sequence[int],
    seed: int | None = None,
    **options: object,
) -> Network:
    """The network called `name`, with its own `options` (`width`, `norm`, …; see its class).

    With a `seed` the initial weights depend on it alone, and torch's random state is left as it was.
    """
    if name not in MODELS:
        raise ValueError(no_such("model", name, MODELS))
    network = MODELS[name]
    known = [o.name for o in signature(network).parameters.values() if o.kind is Parameter.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise ValueError(no_such(f"option of {name}", option, known))
    if seed is None:
        return network(input_shape, classes, **options)
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would reseed the GPU's generator too.
        torch.default_generator.manual_seed(seed)
        return network(input_shape, classes, **options)
