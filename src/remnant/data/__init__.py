"""Streams of tasks: the built-in benchmarks on real data, and anyone's own.

>>> from remnant.data import load_stream
>>> stream = load_stream("permuted-digits", seed=0, tasks=3)
>>> len(stream), stream.head, stream.input_shape
(3, 'single', (1, 8, 8))
"""

from . import five_datasets, incremental, permuted, split  # noqa: F401  each registers its streams
from .errors import DataError, MissingDataError
from .fetch import fetch
from .prepare import add
from .registry import BENCHMARKS, Benchmark, load_stream
from .store import DATASETS, Dataset, Status, data_root, load_dataset, status
from .stream import Split, Stream, Task

__all__ = [
    "BENCHMARKS",
    "DATASETS",
    "Benchmark",
    "DataError",
    "Dataset",
    "MissingDataError",
    "Split",
    "Status",
    "Stream",
    "Task",
    "add",
    "data_root",
    "fetch",
    "load_dataset",
    "load_stream",
    "status",
]
