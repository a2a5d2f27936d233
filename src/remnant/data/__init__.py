"""Streams of tasks: the built-in benchmarks on real data, and a user's own."""

from typing import TYPE_CHECKING

from remnant.lazy import lazy_exports

from .errors import DataError, MissingDataError, MissingExtraError
from .sets.prepare import add, fetch
from .sets.store import DATASETS, Dataset, Status, data_root, load_dataset, state_of, status

__all__ = [
    "BENCHMARKS",
    "BUILT_IN",
    "DATASETS",
    "DATA_PATH",
    "FIRST",
    "DataError",
    "Dataset",
    "MissingDataError",
    "MissingExtraError",
    "Split",
    "Status",
    "Stream",
    "Task",
    "add",
    "data_path",
    "data_root",
    "fetch",
    "load_dataset",
    "load_stream",
    "state_of",
    "status",
]

if TYPE_CHECKING:
    from .benchmarks import BENCHMARKS, BUILT_IN, DATA_PATH, FIRST, data_path, load_stream
    from .stream import Split, Stream, Task
else:  # these import torch
    __getattr__, __dir__ = lazy_exports(
        __name__,
        dict.fromkeys(("BENCHMARKS", "BUILT_IN", "DATA_PATH", "FIRST", "data_path", "load_stream"), ".benchmarks")
        | dict.fromkeys(("Split", "Stream", "Task"), ".stream"),
    )
