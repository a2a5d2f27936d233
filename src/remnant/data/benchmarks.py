"""Streams by name: `load_stream("pmnist", seed=2, tasks=5)`."""

import inspect
import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

from remnant.options import Option, checked, options_of, or_none, whole
from remnant.registry import IN_FILE, Registry, UnknownNameError

from . import class_groups, permuted
from .errors import DataError
from .stream import Head, Stream
from .task_builder import generator

StreamFunction = Callable[..., Stream]


class BuiltIn(NamedTuple):
    """A built-in stream: its function, the datasets that it reads, and the shapes that a network for it has."""

    function: StreamFunction
    datasets: tuple[str, ...]
    input_shape: tuple[int, ...]
    head: Head


BUILT_IN = {
    "pmnist": BuiltIn(permuted.pmnist, ("mnist",), (1, 28, 28), "single"),
    "permuted-fashion": BuiltIn(permuted.permuted_fashion, ("fashion_mnist",), (1, 28, 28), "single"),
    "permuted-digits": BuiltIn(permuted.permuted_digits, ("digits",), (1, 8, 8), "single"),
    "rotated-mnist": BuiltIn(permuted.rotated_mnist, ("mnist",), (1, 28, 28), "single"),
    "split-cifar100": BuiltIn(class_groups.split_cifar100, ("cifar100",), (3, 32, 32), "multi"),
    "cifar100-superclass": BuiltIn(class_groups.cifar100_superclass, ("cifar100",), (3, 32, 32), "multi"),
    "split-miniimagenet": BuiltIn(class_groups.split_miniimagenet, ("miniimagenet",), (3, 84, 84), "multi"),
    "split-tinyimagenet": BuiltIn(class_groups.split_tinyimagenet, ("tiny_imagenet",), (3, 64, 64), "multi"),
    "five-datasets": BuiltIn(class_groups.five_datasets, tuple(class_groups.FIVE), (3, 32, 32), "multi"),
    "digits-incremental": BuiltIn(class_groups.digits_incremental, ("digits",), (1, 8, 8), "single"),
    "mnist-incremental": BuiltIn(class_groups.mnist_incremental, ("mnist",), (1, 28, 28), "single"),
}

DATA_PATH = re.compile(r"[/\\]|\.npz$")  # a stream's name with this in it is the path of its data; a .py: comes first


def data_path(name: str) -> Path:
    """Returns the path of the data that a stream is named by. Raises UnknownNameError if no stream can be read there."""
    path = Path(name).expanduser()
    # os.path, because pathlib raises an OSError for a name that is too long.
    if not os.path.isdir(path) and not (os.path.isfile(path) and path.suffix == ".npz"):
        raise UnknownNameError(f"There is no folder {name}, nor an .npz file of that name.")
    if Path.cwd().is_relative_to(path.resolve()):  # runs are written here, and would become a part of the data
        raise UnknownNameError(f"{name} is the folder you are in, or holds it. Give a folder with nothing but data.")
    return path


class Streams(Registry[Stream | StreamFunction]):
    """Streams by name, or by the path of their data: `images/`, `digits.npz`."""

    def __missing__(self, name: str) -> Stream | StreamFunction:
        if IN_FILE in name or name.endswith(".py") or not DATA_PATH.search(name):
            return super().__missing__(name)
        from .on_disk import stream_on_disk

        path = data_path(name)

        @wraps(stream_on_disk)
        def stream(**options: Any) -> Stream:
            return stream_on_disk(path, **options)

        return stream


FIRST = Option(or_none(whole(1)), None)  # the option `first` of every stream: only its first tasks

BENCHMARKS = Streams("stream", "remnant.streams")
BENCHMARKS.update({name: stream.function for name, stream in BUILT_IN.items()})


def load_stream(stream: str | Stream | StreamFunction, seed: int = 0, **options: Any) -> Stream:
    """Builds a stream. The same seed and options give the same stream on any machine.

    Args:
        stream: A built-in name (`remnant list benchmarks`), an entry point of the group `remnant.streams`,
            `path/to/file.py:name`, the path of data (`images/`, `digits.npz`), a Stream, or a function that returns one.
            A function gets the seed if it has a parameter `seed`; its other parameters are its options.
        seed: A whole number from 0 up, from which all random choices follow.
        **options: Options of the stream, such as `tasks=5`. Every stream takes `first`: `first=3` leaves out all tasks but
            the first three, for example to choose settings on them.

    Raises:
        UnknownNameError: No stream has this name, or the file cannot be used.
        OptionError: The stream has no such option, or the option does not take this value.
        DataError: The datasets are not prepared, or the options do not fit together.

    Example:
        >>> stream = load_stream("permuted-digits", seed=0, tasks=3)
        >>> len(stream), stream.head, stream.input_shape
        (3, 'single', (1, 8, 8))
    """
    generator(seed, "check")  # refuses a bad seed before any file is read
    found = BENCHMARKS[stream] if isinstance(stream, str) else stream
    name = stream if isinstance(stream, str) else getattr(stream, "name", getattr(stream, "__name__", str(stream)))
    if not isinstance(found, Stream) and not callable(found):
        raise DataError(f"'{name}' must be a Stream or a function that returns one, and is {found!r:.60}.")
    own = options_of(found) if callable(found) else {}
    given = options.pop("first", None) if "first" not in own else None
    first = FIRST.kind.read(given, f"first={given!r}: first")
    if isinstance(found, Stream):
        if options:
            raise DataError(f"'{name}' is a finished stream and takes no options. Make it a function to give it some.")
        return replace(found.first(first) if first else found, seed=seed)
    parameters = inspect.signature(found).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    chosen = options if takes_any else checked(found, options, f"'{name}'")
    made = found(**({"seed": seed} if takes_any or "seed" in parameters else {}), **chosen)
    if not isinstance(made, Stream):
        raise DataError(f"'{name}' must return a remnant.data.Stream, and returned {made!r:.60}.")
    defaults = {option: default for option, (_, default) in own.items()}
    kept = name if isinstance(stream, str) and IN_FILE not in stream else made.name
    made = replace(made, name=kept, seed=seed, options=defaults | chosen)
    return made.first(first) if first else made
