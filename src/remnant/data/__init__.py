"""Streams of tasks: the built-in benchmarks on real data, and a user's own.

>>> from remnant.data import load_stream
>>> stream = load_stream("permuted-digits", seed=0, tasks=3)
>>> len(stream), stream.head, stream.input_shape
(3, 'single', (1, 8, 8))
"""

from typing import TYPE_CHECKING

from remnant.lazy import lazy_exports

from .errors import DataError, MissingDataError, MissingExtraError
from .sets.download import fetch
from .sets.prepare import add
from .sets.store import DATASETS, Dataset, Status, data_root, is_ready, load_dataset, status

__all__ = [
    "BENCHMARKS",
    "DATASETS",
    "DataError",
    "Dataset",
    "MissingDataError",
    "MissingExtraError",
    "Split",
    "Status",
    "Stream",
    "Task",
    "add",
    "built_in",
    "data_root",
    "datasets_of",
    "fetch",
    "is_ready",
    "load_dataset",
    "load_stream",
    "status",
]

if TYPE_CHECKING:
    from .registry import BENCHMARKS, built_in, datasets_of, load_stream
    from .stream import Stream
    from .task import Split, Task
else:  # these import torch
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            **dict.fromkeys(("BENCHMARKS", "built_in", "datasets_of", "load_stream"), ".registry"),
            **dict.fromkeys(("Split", "Task"), ".task"),
            "Stream": ".stream",
        },
    )
