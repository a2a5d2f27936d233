"""From settings to the stream and the method they describe."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

from remnant.accelerated import fuse_activations
from remnant.data import Stream, load_stream
from remnant.data.errors import DataError
from remnant.methods import METHODS, Method
from remnant.models import build

from ..runs.folder import RunError
from ..settings.resolve import Settings, is_own_stream


def build_method(settings: Settings, seed: int, device: torch.device) -> tuple[Stream, Method]:
    """The stream of a seed, and the method with its network on the device."""
    if settings.method not in METHODS:
        raise RunError(f"{settings.benchmark} has settings for '{settings.method}', but there is no such method.")
    stream = _stream(settings, seed)
    shape = dict(settings.network)
    classes = stream.head_sizes[0] if stream.head == "single" else list(stream.head_sizes)
    name = shape.pop("name")
    try:
        network = build(name, input_shape=stream.input_shape, classes=classes, seed=seed, **shape)
        if device.type == "cuda":
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster convolutions
            fuse_activations(network)
        return stream, METHODS[settings.method](network.to(device), **settings.options)
    except ValueError as error:  # settings that are good by themselves, but not for each other
        raise RunError(f"{settings.method} on {settings.benchmark}: {error}") from error


def _stream(settings: Settings, seed: int) -> Stream:
    try:
        return load_stream(settings.benchmark, seed=seed, **settings.stream_options(seed))
    except DataError:
        raise
    except Exception as error:
        if not is_own_stream(settings.benchmark):
            raise
        # Anything may go wrong in somebody's own code: they want to know where, not how we came to call it.
        place = _place(error, Path(settings.benchmark.rpartition(":")[0]))
        raise RunError(f"{settings.benchmark} could not be made: {type(error).__name__}: {error}{place}.") from error


def _place(error: Exception, file: Path) -> str:
    """Where in the file it happened, or from where there."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name == file.name
    ]
    return f" ({file.name}, line {lines[-1]})" if lines else ""
