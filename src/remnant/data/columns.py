"""Reads data in named columns (a dict, an `.npz` file, a saved HuggingFace dataset): finds inputs, labels and tasks."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remnant.errors import nearest

from .errors import DataError, MissingExtraError, explaining_damage
from .pictures import Size, picture_reader
from .table import PARTS, Table
from .task_builder import Rows

USUAL = {  # the names that a column usually has, by the option that gives it another
    "x": ("x", "image", "images", "img", "pixel_values", "input_ids", "features", "data"),
    "y": ("y", "label", "labels", "target", "targets", "class"),
    "task": ("task", "tasks", "task_id"),
}
MISSPELT = 0.75  # how alike a key and a missing one are, at least, if one of them is a misspelling
Names = Mapping[str, str | None]  # the names that the user gives, by option; None for the usual ones


def pick(columns: Iterable[str], option: str, where: str, name: str | None = None) -> str:
    """Returns the one of `columns` that is called `name`, or that has one of the option's usual names.

    Raises:
        DataError: no such column exists, or several do.
    """
    there = list(columns)
    found = [each for each in there if each in ((name,) if name else USUAL[option])]
    if len(found) == 1:
        return found[0]
    shown = ", ".join(found or there) or "nothing"
    if name:
        raise DataError(f"{where}: {option}={name}: there is no such column. There are {shown}.")
    if found:
        raise DataError(f"{where}: {shown} could all be {option}. Choose one: --set stream.{option}=…")
    usual = ", ".join(USUAL[option])
    raise DataError(f"{where}: no column is called {usual}; there are {shown}. Name it: --set stream.{option}=…")


def npz_tables(path: Path, names: Names) -> dict[str, Table]:
    """The parts of an `.npz` file. Its keys are columns, with the part before or after: x_train, train_images, y."""
    parts: dict[str, dict[str, NDArray[Any]]] = {}
    if not is_zipfile(path):  # numpy would advise to unpickle it
        raise DataError(f"{path} is not a readable .npz file: np.savez(path, x=…, y=…) writes one.")
    damage = explaining_damage(f"{path} is not a readable .npz file of arrays")
    with damage, np.load(path, allow_pickle=False) as file:
        for key in file.files:
            words = key.split("_")
            part = next((PARTS[word.lower()] for word in words if word.lower() in PARTS), "train")
            column = "_".join(word for word in words if word.lower() not in PARTS)
            parts.setdefault(part, {})[column] = file[key]
    tables = {part: _npz_table(f"{path}, {part}", columns, names) for part, columns in parts.items()}
    _refuse_misspelt(path, parts, names)
    return tables


def _refuse_misspelt(path: Path, parts: Mapping[str, Iterable[str]], names: Names) -> None:
    """Refuses a key that is nearly one that the file lacks: `x_tset` would be ignored, and a test part held out of train."""
    known = {option: (name,) if (name := names[option]) else USUAL[option] for option in USUAL}
    if names["x"] and names["y"] and not names["task"]:
        known["task"] = ()  # who names the columns has no other one in mind
    missing = []
    for word, part in PARTS.items():
        lacking = [usual for usual in known.values() if set(usual).isdisjoint(parts.get(part, ()))]
        missing += [key for usual in lacking for each in usual for key in (f"{each}_{word}", f"{word}_{each}")]
        missing += [each for usual in lacking for each in usual if part == "train"]
    read = {each for usual in known.values() for each in usual}
    for key in (key for columns in parts.values() for key in columns if key not in read):
        if near := nearest(key, missing, cutoff=MISSPELT):
            raise DataError(
                f"{path}: nothing reads the key '{key}'. Did you mean '{near}'? Rename it, or say which columns are meant: "
                "--set stream.x=… --set stream.y=…"
            )


def _npz_table(where: str, columns: dict[str, NDArray[Any]], names: Names) -> Table:
    name = pick(columns, "x", where, names["x"])
    x = columns[name]
    if x.ndim < 2 or x.dtype.kind not in "iufb":
        raise DataError(
            f"{where}: {name} is {x.dtype} of shape {x.shape}; expected numbers, and one row or image per example."
        )
    return _table(where, columns, columns.__getitem__, names, len(x), lambda rows: _channels_first(x[rows]))


def saved_tables(path: Path, names: Names, size: Size | None) -> dict[str, Table]:
    """The parts of a dataset that HuggingFace datasets has saved."""
    try:
        from datasets import load_from_disk
    except ImportError as error:
        raise MissingExtraError(f"{path} needs HuggingFace datasets: pip install datasets.") from error
    with explaining_damage(f"{path} is not a readable HuggingFace dataset"):
        loaded: Any = load_from_disk(str(path))
    splits = loaded if isinstance(loaded, Mapping) else {"train": loaded}
    chosen = {PARTS[split]: data for split, data in splits.items() if split in PARTS}
    return {part: _saved_table(f"{path}, {part}", data, names, size) for part, data in chosen.items()}


def _saved_table(where: str, data: Any, names: Names, size: Size | None) -> Table:
    from datasets import Image

    name = pick(data.column_names, "x", where, names["x"])
    if isinstance(data.features[name], Image):
        # As they are stored, for our own decoder and its limits.
        encoded = data.select_columns([name]).cast_column(name, Image(decode=False))

        def load(row: int) -> tuple[bytes, str]:
            picture = encoded[row][name]
            return picture["bytes"] or Path(picture["path"]).read_bytes(), f"{where}: picture {row}"

        read = picture_reader(load, size)
    else:
        read = _number_reader(data.with_format("numpy", [name]), name, where)
    return _table(where, data.column_names, data.__getitem__, names, len(data), read)


def _number_reader(data: Any, name: str, where: str) -> Callable[[Rows], Tensor]:
    def read(rows: Rows) -> Tensor:
        x = np.asarray(data[rows][name])
        if x.dtype.kind not in "iufb":
            raise DataError(
                f"{where}: {name} is text, or its examples have several lengths. Tokenise text, pad all examples to one "
                "length, and save the dataset again."
            )
        return _channels_first(x)

    return read


def _table(
    where: str,
    columns: Iterable[str],
    get: Callable[[str], Any],
    names: Names,
    count: int,
    read: Callable[[Rows], Tensor],
) -> Table:
    def values(option: str) -> Any:
        """One whole number or name per example."""
        name = pick(columns, option, where, names[option])
        found = np.asarray(get(name))
        found = found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found
        if found.ndim != 1 or found.dtype.kind not in "iubU":
            kind = f"{found.dtype} of shape {found.shape}"
            raise DataError(f"{where}: {name} is {kind}; expected one whole number or name per example.")
        if len(found) != count:
            raise DataError(f"{where}: {count} examples, but {len(found)} values of {name}.")
        return found

    has_task = names["task"] or not set(USUAL["task"]).isdisjoint(columns)
    return Table(where, values("y"), values("task") if has_task else None, read)


def _channels_first(x: NDArray[Any]) -> Tensor:
    """Images with their channels first, as torch has them. Bytes N×H×W are grey images."""
    values = torch.from_numpy(x)
    if values.ndim == 3 and values.dtype == torch.uint8:
        return values.unsqueeze(1)
    if values.ndim == 4 and values.shape[3] in (1, 3) and values.shape[1] not in (1, 3):
        return values.permute(0, 3, 1, 2).contiguous()
    return values
