"""Prepared sets: one `NAME.npz` each, in $REMNANT_DATA or else ~/.cache/remnant; read one array at a time."""

import os
import secrets
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, MissingDataError, did_you_mean
from .sources import SOURCES, Source, source

Pixels = NDArray[np.uint8]
Part = Literal["train", "test"]
Arrays = dict[str, Pixels]

DATASETS = (*SOURCES, "digits")


def data_root() -> Path:
    """The folder of prepared sets."""
    chosen = os.environ.get("REMNANT_DATA")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "remnant"


def prepared_path(name: str) -> Path:
    return data_root() / f"{name}.npz"


class Dataset:
    """A set's uint8 images (N×H×W or N×H×W×3) and labels, in their original order; each array is read when first used."""

    def __init__(self, name: str, arrays: Mapping[str, Pixels], image: tuple[int, ...]) -> None:
        self.name = name
        self.input_shape = (image[2] if len(image) == 3 else 1, image[0], image[1])
        self._arrays = arrays
        self._read: Arrays = {}

    def _get(self, key: str) -> Pixels:
        if key not in self._read:
            if key not in self._arrays:
                raise DataError(f"'{self.name}' has no array '{key}'.")
            self._read[key] = self._arrays[key]
        return self._read[key]

    def images(self, part: Part) -> Pixels:
        return self._get(f"{part}_images")

    def labels(self, part: Part) -> Pixels:
        return self._get(f"{part}_labels")

    def coarse(self, part: Part) -> Pixels:
        """Superclass labels (cifar100 alone has them)."""
        return self._get(f"{part}_coarse")

    @property
    def classes(self) -> int:
        return int(self.labels("train").max()) + 1

    def __repr__(self) -> str:
        return f"Dataset('{self.name}')"


class _Npz(Mapping[str, Pixels]):
    """The arrays of a file, opened anew for each read so that no handle outlives it."""

    def __init__(self, path: Path, headers: dict[str, tuple[int, ...]]) -> None:
        self.path, self.headers = path, headers

    def __getitem__(self, key: str) -> Pixels:
        try:
            with np.load(self.path, allow_pickle=False) as file:
                return np.asarray(file[key])
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise DataError(f"{self.path} is damaged ({error}). Remove it and prepare the set again.") from error

    def __contains__(self, key: object) -> bool:
        return key in self.headers  # a Mapping's own way would read the array to find out

    def __iter__(self) -> Any:
        return iter(self.headers)

    def __len__(self) -> int:
        return len(self.headers)


def _headers(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of a file's arrays, without reading the arrays."""
    shapes = {}
    with zipfile.ZipFile(path) as file:
        for member in file.namelist():
            with file.open(member) as f:
                major = np.lib.format.read_magic(f)[0]
                read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(f)
                if dtype != np.uint8:
                    raise ValueError(f"{member} is {dtype}, not uint8")
                shapes[member.removesuffix(".npy")] = shape
    return shapes


def check_shapes(entry: Source, shapes: Mapping[str, tuple[int, ...]], where: object) -> None:
    """Refuses arrays that are not this set, saying what is wrong with them."""
    parts = ("images", "labels", "coarse") if entry.coarse else ("images", "labels")
    absent = [f"{p}_{kind}" for p in ("train", "test") for kind in parts if f"{p}_{kind}" not in shapes]
    if absent:
        raise DataError(f"{where}: '{entry.name}' needs the arrays {', '.join(absent)}, which are not there.")
    found = (shapes["train_images"][0], shapes["test_images"][0])
    if found not in entry.counts:
        wanted = " or ".join(f"{a:,} + {b:,}" for a, b in entry.counts)
        raise DataError(
            f"{where}: '{entry.name}' should have {wanted} images (train + test); "
            f"{found[0]:,} + {found[1]:,} were found. A file may be missing or cut short."
        )
    for part, count in zip(("train", "test"), found, strict=True):
        if shapes[f"{part}_images"][1:] != entry.image:
            raise DataError(
                f"{where}: images are {shapes[f'{part}_images'][1:]}, but '{entry.name}' has {entry.image}."
            )
        for kind in parts[1:]:
            if shapes[f"{part}_{kind}"] != (count,):
                raise DataError(f"{where}: {part}_{kind} has shape {shapes[f'{part}_{kind}']}, not ({count},).")


def check_arrays(entry: Source, arrays: Arrays, where: object) -> None:
    """`check_shapes`, and that every class is there in both parts."""
    check_shapes(entry, {key: array.shape for key, array in arrays.items()}, where)
    classes = entry.classes[entry.counts.index((len(arrays["train_images"]), len(arrays["test_images"])))]
    for part in ("train", "test"):
        present = np.unique(arrays[f"{part}_labels"])
        if not np.array_equal(present, np.arange(classes)):
            raise DataError(
                f"{where}: the {part} labels of '{entry.name}' should be 0…{classes - 1}, each at least once."
            )


def write_prepared(name: str, arrays: Arrays) -> Path:
    """Writes NAME.npz whole or not at all: a temporary name in the same folder, fsync, rename."""
    path = prepared_path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(partial, "xb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's stub takes allow_pickle for one of the arrays
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    return path


def _sync_folder(folder: Path) -> None:
    """Makes the rename itself durable, where the system lets a folder be opened."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


_open: WeakValueDictionary[tuple[str, int, int], Dataset] = WeakValueDictionary()


def load_dataset(name: str) -> Dataset:
    """A prepared set by name. Streams of several seeds share one copy of its pixels."""
    if name == "digits":
        from .readers.digits import read_digits

        return Dataset("digits", read_digits(), (8, 8))
    if name not in SOURCES:
        raise DataError(f"No data set called '{name}'. {did_you_mean(name, DATASETS)}")
    entry, path = source(name), prepared_path(name)
    if not path.exists():
        how = f"Run `remnant data fetch {name}`, or `remnant data add {name} PATH` with {entry.wanted}."
        raise MissingDataError(f"'{name}' is not prepared: {path} does not exist. {how}")
    stat = path.stat()
    key = (str(path), stat.st_mtime_ns, stat.st_size)
    dataset = _open.get(key)
    if dataset is None:
        try:
            headers = _headers(path)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise DataError(f"{path} is damaged ({error}). Remove it and prepare the set again.") from error
        check_shapes(entry, headers, path)
        dataset = _open[key] = Dataset(name, _Npz(path, headers), entry.image)
    return dataset


@dataclass(frozen=True)
class Status:
    """What is known of one set on this machine; `problem` is empty where it is ready."""

    name: str
    title: str
    path: Path | None
    train: int
    test: int
    bytes: int
    problem: str

    @property
    def ready(self) -> bool:
        return not self.problem


def status() -> list[Status]:
    """Every set: ready, missing or damaged. Reads headers only."""
    rows = []
    for entry in SOURCES.values():
        path = prepared_path(entry.name)
        try:
            load_dataset(entry.name)
            shapes = _headers(path)
            train, test = shapes["train_images"][0], shapes["test_images"][0]
            rows.append(Status(entry.name, entry.title, path, train, test, path.stat().st_size, ""))
        except MissingDataError:
            rows.append(Status(entry.name, entry.title, path, 0, 0, 0, "not here"))
        except DataError as error:
            rows.append(Status(entry.name, entry.title, path, 0, 0, path.stat().st_size, str(error)))
    return [*rows, _digits_status()]


def is_ready(name: str) -> bool:
    """Whether a set can be loaded; reads no more than headers, and of the digits nothing."""
    if name == "digits":
        return find_spec("sklearn") is not None
    try:
        load_dataset(name)
    except DataError:
        return False
    return True


def _digits_status() -> Status:
    title = "scikit-learn's digits, 8×8"
    try:
        digits = load_dataset("digits")
    except DataError as error:
        return Status("digits", title, None, 0, 0, 0, str(error))
    return Status("digits", title, None, len(digits.labels("train")), len(digits.labels("test")), 0, "")
