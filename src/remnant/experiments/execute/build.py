"""Builds the stream, the network and the method of a run, and refuses what could not run."""

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from remnant.data import BUILT_IN, Split, Stream, load_stream
from remnant.errors import RunError, UserError, own_line
from remnant.memory import UnsupportedError, codec
from remnant.methods import METHODS, Method
from remnant.models import MODELS, Network, build
from remnant.registry import IN_FILE

from ..settings import Settings

TOO_LARGE = "needs more memory than this machine has. Use smaller inputs, fewer classes or a smaller network."


def build_method(settings: Settings, seed: int, device: torch.device) -> tuple[Stream, Method]:
    """Builds the stream for a seed, and the method with its network on the device."""
    name = settings.benchmark
    try:
        stream = load_stream(name, seed=seed, **settings.stream)
        is_own = name not in BUILT_IN or settings.network["name"] not in MODELS.data
        examples = stream[0].train.x[:2] if is_own else None
        classes = stream.head_sizes[0] if stream.head == "single" else list(stream.head_sizes)
        options = dict(settings.network)
        name = options.pop("name")
        with _limited_memory(name):
            network = build(name, input_shape=stream.input_shape, classes=classes, seed=seed, **options)
        for parameter in (p for p in network.parameters() if p.ndim == 4):
            parameter.data = parameter.data.to(memory_format=torch.channels_last)  # faster convolutions
        if examples is not None:
            _check_inputs(network, Split.of(examples, examples[:, :0]).to("cpu").x, name)  # as runs have them
        name = settings.method
        method = METHODS[name](network.to(device), **settings.options)
        if settings.optimizer:
            method.use_optimizer(**settings.optimizer)
        if name not in METHODS.data:
            _check_method(method, name)
        if method.anneal is True and "patience" in settings.training:
            raise RunError(
                "anneal lets the rate fall over a fixed number of epochs, and training.patience stops early. Use only one of "
                "them: add --set training.patience=none, or set anneal=false."
            )
    except UnsupportedError as error:
        raise RunError(
            f"{error} With `remnant run`, write --set unsupported=freeze, --set unsupported=free or --set 'exclude=[…]'."
        ) from error
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        if "allocate memory" in str(error) or isinstance(error, MemoryError):
            raise RunError(f"{name} {TOO_LARGE}") from error
        if IN_FILE in name or isinstance(error, SystemExit):
            reason = f"{type(error).__name__}: {error}".removesuffix(".")
            raise RunError(f"{name} could not be built: {reason}{own_line(error)}.") from error
        if isinstance(error, ValueError):  # each setting is valid, but they do not fit each other
            raise RunError(f"{settings.method} on {settings.benchmark}: {error}") from error
        raise
    return stream, method


@contextmanager
def _limited_memory(name: str) -> Iterator[None]:
    """Refuses a network as soon as its weights and their gradients exceed the memory, before they are filled."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**63
    weights = 0

    def count(module: nn.Module, key: str, parameter: nn.Parameter | None) -> None:
        nonlocal weights
        weights += 0 if parameter is None else parameter.nbytes
        if 2 * weights > memory:
            raise RunError(f"{name} {TOO_LARGE}")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def _check_method(method: Method, name: str) -> None:
    """Refuses now what would fail when the first task is saved."""
    capacity = getattr(method, "capacity", None)  # a property may need what the first task sets
    if not isinstance(capacity, Real | None):
        raise RunError(
            f"{name}: `capacity` is {capacity!r:.60}. It must be a number: the parameters in use, relative to those of the "
            "network."
        )
    codec.pack(method.state_dict())


def _check_inputs(network: Network, x: Tensor, name: str) -> None:
    """Takes two examples through a copy of the network."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            features = copy.deepcopy(network).eval().features(x)
    except Exception as error:
        line = own_line(error) if IN_FILE in name else ""
        raise RunError(
            f"{name} cannot take inputs of {x.dtype} and shape {tuple(x.shape[1:])} ({type(error).__name__}: {error}"
            f"{line}). Change its `features` or the inputs of the stream, or choose another network (network.name); int64 "
            "needs an embedding."
        ) from error
    wanted = (len(x), network.head_of(0).in_features)
    if (found := tuple(getattr(features, "shape", ()))) != wanted:
        raise RunError(
            f"{name}: `features` returns {found} for {len(x)} inputs, where `attach_heads` was told {wanted[1]} features: "
            f"it must return {wanted}. Flatten its output, or call attach_heads with its width."
        )
