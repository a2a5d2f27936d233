"""The built-in streams: importing a family's file registers its streams."""

from . import five_datasets, incremental, permuted, split  # noqa: F401
from .registry import BENCHMARKS, Benchmark, load_stream

__all__ = ["BENCHMARKS", "Benchmark", "load_stream"]
