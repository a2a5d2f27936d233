"""From settings to the stream and the method they describe."""

from __future__ import annotations

import torch

from remnant.data import Stream, load_stream
from remnant.methods import METHODS, Method
from remnant.models import build

from .folder import RunError
from .settings import Settings


def build_method(settings: Settings, seed: int, device: torch.device) -> tuple[Stream, Method]:
    """The stream of a seed, and the method with its network on the device."""
    if settings.method not in METHODS:
        raise RunError(f"{settings.benchmark} has settings for '{settings.method}', but there is no such method.")
    stream = load_stream(settings.benchmark, seed=seed, **settings.stream_options(seed))
    shape = dict(settings.network)
    classes = stream.head_sizes[0] if stream.head == "single" else list(stream.head_sizes)
    name = shape.pop("name")
    try:
        network = build(name, input_shape=stream.input_shape, classes=classes, seed=seed, **shape)
        if device.type == "cuda":
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster convolutions
        return stream, METHODS[settings.method](network.to(device), **settings.options)
    except ValueError as error:  # settings that are good by themselves, but not for each other
        raise RunError(f"{settings.method} on {settings.benchmark}: {error}") from error
