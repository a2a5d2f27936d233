"""Builds the stream, the network and the method that settings describe."""

import traceback

import torch

from remnant.accelerated import fuse_activations
from remnant.data import Stream, load_stream
from remnant.errors import UserError
from remnant.methods import METHODS, Method
from remnant.models import build
from remnant.registry import file_of, is_file_reference

from ..runs import RunError
from ..settings import Settings, recipe

OTHER_LAYERS = " The recipe's thresholds name layers of its own network: add --set threshold=0.97."


def build_method(settings: Settings, seed: int, device: torch.device) -> tuple[Stream, Method]:
    """Builds the stream of a seed, and the method with its network on the device."""
    name = settings.benchmark
    try:
        stream = load_stream(name, seed=seed, **settings.stream)
        classes = stream.head_sizes[0] if stream.head == "single" else list(stream.head_sizes)
        options = dict(settings.network)
        name = options.pop("name")
        network = build(name, input_shape=stream.input_shape, classes=classes, seed=seed, **options)
        if device.type == "cuda":
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster convolutions
            fuse_activations(network)
        name = settings.method
        method = METHODS[name](network.to(device), **settings.options)
        if settings.optimizer:
            method.use_optimizer(**settings.optimizer)
    except UserError:
        raise
    except Exception as error:
        if is_file_reference(name):
            place = _line(error, name)
            raise RunError(f"{name} could not be built: {type(error).__name__}: {error}{place}.") from error
        if isinstance(error, ValueError):  # each setting is valid, but they do not fit each other
            usual = recipe(settings.benchmark, settings.protocol).methods.get(settings.method, {}).get("threshold")
            names_layers = str(error).startswith("threshold[")
            hint = OTHER_LAYERS if names_layers and settings.options["threshold"] == usual else ""
            raise RunError(f"{settings.method} on {settings.benchmark}: {error}{hint}") from error
        raise
    return stream, method


def _line(error: Exception, name: str) -> str:
    """The last line of the user's file on the way to the error."""
    file = file_of(name).name
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename.endswith(file)]
    return f" ({file}, line {lines[-1]})" if lines else ""
