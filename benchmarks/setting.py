"""A benchmark as its recipe has it: our method, the reference beside it, and the tasks, all on one device."""

from __future__ import annotations

from argparse import ArgumentTypeError
from fnmatch import fnmatch
from typing import Any

import torch
from reference import Reference

from remnant.accelerated import fuse_activations
from remnant.data import MissingDataError, Task, load_stream
from remnant.experiments.execute import prepare_torch
from remnant.experiments.settings import resolve
from remnant.methods import METHODS, Method
from remnant.models import Network, build
from remnant.options import OptionError

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")


def best_device() -> torch.device:
    return GPU if torch.cuda.is_available() else CPU


def some(text: str) -> int:
    """A number from 1 up, for an option that counts."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text}: at least 1")
    return int(text)


class Setting:
    """Everything with seed 0. On a CPU torch then has one thread, as it has in a run.

    Where the data is not on this machine that is said and the script ends well, so that `make bench` goes on.
    """

    def __init__(self, benchmark: str, device: torch.device, *overrides: str) -> None:
        prepare_torch(device, deterministic=False, tf32=True)
        try:
            self.device, self.settings = device, resolve(benchmark, "gpm", overrides)
        except OptionError as error:
            raise SystemExit(f"Error: {error}") from None
        try:
            self.stream = load_stream(benchmark, seed=0, **self.settings.stream)
        except MissingDataError as error:
            print(f"Not measured: {error}")
            raise SystemExit(0) from None
        self.batch = int(self.settings.training["batch"])

    def task(self, number: int) -> Task:
        return self.stream[number].to(self.device)

    def method(self, name: str = "gpm") -> Method:
        options = self.settings.options if name == "gpm" else {"lr": self.settings.options["lr"]}
        network = self._network()
        if self.device.type == "cuda":
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as in a run
        return METHODS[name](network, **options)

    def reference(self) -> Reference:
        options = {
            name: value for name, value in self.settings.options.items() if name not in ("threshold", "rank_rule")
        }
        threshold = self.settings.options["threshold"]
        return Reference(self._network(), threshold=lambda *at: _threshold(threshold, *at), **options)

    def _network(self) -> Network:
        shape, stream = dict(self.settings.network), self.stream
        classes = stream.head_sizes[0] if stream.head == "single" else list(stream.head_sizes)
        network = build(shape.pop("name"), input_shape=stream.input_shape, classes=classes, seed=0, **shape)
        if self.device.type == "cuda":
            fuse_activations(network)  # as in a run; the reference uses them too
        return network.to(self.device)


def _threshold(setting: dict[str, Any], layer: str, task: int) -> float:
    if "layers" in setting:
        return float(next(value for pattern, value in setting["layers"].items() if fnmatch(layer, pattern)))
    return float(setting["value"]) if "value" in setting else float(setting["start"]) + task * float(setting["step"])
