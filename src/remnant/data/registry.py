"""Streams by name: `load_stream("pmnist", seed=2, tasks=5)`."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .errors import DataError, did_you_mean
from .own_file import load_file
from .seeding import generator
from .stream import Stream


@dataclass(frozen=True)
class Benchmark:
    """A built-in stream: its builder, and the options it takes with their defaults."""

    name: str
    build: Callable[..., Stream]
    datasets: tuple[str, ...]

    @property
    def summary(self) -> str:
        return (self.build.__doc__ or "").strip().splitlines()[0]

    @property
    def options(self) -> dict[str, Any]:
        parameters = inspect.signature(self.build).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


BENCHMARKS: dict[str, Benchmark] = {}


def benchmark(name: str, *datasets: str) -> Callable[[Callable[..., Stream]], Callable[..., Stream]]:
    """Registers a builder `(seed, *, option=default …) -> Stream` that reads the named sets."""

    def register(build: Callable[..., Stream]) -> Callable[..., Stream]:
        BENCHMARKS[name] = Benchmark(name, build, datasets)
        return build

    return register


def load_stream(name: str, seed: int = 0, **options: Any) -> Stream:
    """A built-in stream, or a user's own as `path/to/file.py:name`. The same seed gives the same stream anywhere."""
    if ".py:" in name:
        return load_file(name, seed, **options)
    if name not in BENCHMARKS:
        raise DataError(f"No stream called '{name}'. {did_you_mean(name, BENCHMARKS)}")
    entry = BENCHMARKS[name]
    known = entry.options
    for option in options:
        if option not in known:
            raise DataError(f"{option}={options[option]!r}: no such option of '{name}'. {did_you_mean(option, known)}")
    generator(seed, "check")  # refuses a bad seed before any file is read
    chosen = {**known, **options}
    return replace(entry.build(seed, **chosen), name=name, seed=seed, options=chosen)
