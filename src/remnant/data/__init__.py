"""Streams of tasks: the built-in benchmarks on real data, and anyone's own.

>>> from remnant.data import load_stream
>>> stream = load_stream("permuted-digits", seed=0, tasks=3)
>>> len(stream), stream.head, stream.input_shape
(3, 'single', (1, 8, 8))
"""

from typing import TYPE_CHECKING

from remnant.lazy import lazy_exports

from .errors import DataError, MissingDataError
from .sets.download import fetch
from .sets.prepare import add
from .sets.store import DATASETS, Dataset, Status, data_root, load_dataset, status

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

if TYPE_CHECKING:
    from .builtin import BENCHMARKS, Benchmark, load_stream
    from .stream import Split, Stream, Task
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            **dict.fromkeys(("BENCHMARKS", "Benchmark", "load_stream"), ".builtin"),
            **dict.fromkeys(("Split", "Stream", "Task"), ".stream"),
        },
    )
