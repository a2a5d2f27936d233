"""Streams from data on disk, without a Python file: pictures, an `.npz` file, or a dataset saved by HuggingFace datasets."""

from pathlib import Path
from typing import Annotated, Any

from remnant.options import Share, whole

from .columns import npz_tables, saved_tables
from .errors import DataError
from .pictures import picture_tables
from .stream import ClassOrder, Head, Stream
from .table import Division
from .task_builder import Tasks

Side = Annotated[int, whole(1, 8192)]
SAVED = ("dataset_info.json", "dataset_dict.json")  # in the folder of a HuggingFace dataset


def stream_on_disk(
    path: Path,
    /,
    seed: int,
    *,
    tasks: Tasks | None = None,
    class_order: ClassOrder = "natural",
    head: Head = "multi",
    test: Share = 0.2,
    valid: Share = 0.0,
    size: tuple[Side, Side] | None = None,
    x: str | None = None,
    y: str | None = None,
    task: str | None = None,
) -> Stream:
    """Pictures in folders, an .npz file, or a dataset saved by HuggingFace datasets.

    Args:
        path: The folder or file.
        tasks: How many tasks to divide the classes into, if the data does not name the task of each example.
        class_order: The order in which classes are divided: sorted, or shuffled by the seed.
        head: "multi" or "single"; see `Stream`.
        test, valid: The share of train to hold out, if there is no such part.
        size: (height, width) to resize pictures to.
        x, y, task: The names of the columns, if they are not the usual ones.
        seed: Chooses the examples that are held out, and the order of classes.
    """
    division, names = Division(tasks, class_order, head, test, valid, seed), {"x": x, "y": y, "task": task}
    if path.is_file():
        _refuse(path, "an .npz file, whose images keep their size", size=size)
        return division.stream(path.stem, npz_tables(path, names))
    if any((path / name).is_file() for name in SAVED):
        return division.stream(path.name, saved_tables(path, names, size))
    _refuse(path, "a folder of pictures, which has no columns", **names)
    return division.stream(path.name, picture_tables(path, size))


def _refuse(path: Path, what: str, **given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise DataError(f"{name}={value}: {path} is {what}. Leave out {name}.")
