"""Prepared datasets: one `NAME.npz` each, in $REMNANT_DATA or ~/.cache/remnant. `digits` comes with scikit-learn."""

import importlib
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np

from remnant.files import replacing

from ..errors import DataError, MissingDataError, MissingExtraError, explaining_damage
from .sources import SOURCES, Arrays, Pixels, Source, source

DATASETS = (*SOURCES, "digits")
PREPARE_AGAIN = "Remove it and prepare the dataset again."


def data_root() -> Path:
    """The folder of prepared datasets."""
    chosen = os.environ.get("REMNANT_DATA")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "remnant"


def prepared_path(name: str) -> Path:
    return data_root() / f"{name}.npz"


@dataclass(frozen=True, eq=False)
class Dataset:
    """uint8 images (N×H×W or N×H×W×3) and labels in their original order. Each array is read on first use."""

    name: str
    arrays: Arrays
    input_shape: tuple[int, ...]  # channels first


class _Npz(Arrays):
    """The arrays of a file, each read on first use; `classes` bounds labels. The file is closed between reads."""

    def __init__(self, path: Path, classes: Mapping[str, int]) -> None:
        super().__init__()
        self.path, self.classes = path, classes

    def __missing__(self, key: str) -> Pixels:
        with explaining_damage(f"{self.path} is damaged", PREPARE_AGAIN), zipfile.ZipFile(self.path) as archive:
            if f"{key}.npy" not in archive.namelist():
                raise DataError(f"{self.path} has no array '{key}'.")
            with archive.open(f"{key}.npy") as file:
                array: Pixels = np.lib.format.read_array(file, allow_pickle=False)
                if file.read(1):  # at the end, the checksum is compared
                    raise ValueError(f"{key} is longer than its header says")
            if array.max(initial=0) >= self.classes.get(key, 256):
                raise ValueError(f"{key} are not all below {self.classes[key]}")
        self[key] = array
        return array


def _shapes(path: Path, limit: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a file's arrays, from their headers alone."""
    shapes = {}
    with explaining_damage(f"{path} is damaged", PREPARE_AGAIN):
        if path.stat().st_size > limit:
            raise ValueError(f"it is larger than {limit:,} bytes")
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                with archive.open(member) as file:
                    np.lib.format.read_magic(file)
                    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
                if dtype != np.uint8:
                    raise ValueError(f"{member} is {dtype}, not uint8")
                shapes[member.removesuffix(".npy")] = shape
    return shapes


def _check_shapes(entry: Source, shapes: Mapping[str, tuple[int, ...]], where: object) -> dict[str, int]:
    """How many classes each array of labels has, in the edition that has these shapes; a DataError if none has."""
    for counts, classes in zip(entry.counts, entry.classes, strict=True):
        kinds = {"labels": classes} | ({"coarse": entry.coarse} if entry.coarse else {})
        wanted: dict[str, tuple[int, ...]] = {}
        for part, count in zip(("train", "test"), counts, strict=True):
            wanted |= {f"{part}_images": (count, *entry.image)} | {f"{part}_{kind}": (count,) for kind in kinds}
        if wanted.items() <= shapes.items():
            return {f"{part}_{kind}": number for part in ("train", "test") for kind, number in kinds.items()}
    editions = " or ".join(f"{train:,} + {test:,}" for train, test in entry.counts)
    found = ", ".join(f"{key} {' × '.join(map(str, shape))}" for key, shape in shapes.items())
    raise DataError(
        f"{where}: '{entry.name}' should have {editions} images (train + test) of {' × '.join(map(str, entry.image))} with "
        f"their labels, but has {found}. A file may be missing or cut short."
    )


def check_arrays(entry: Source, arrays: Arrays, where: object) -> None:
    """Checks the shapes, and that both parts have every class."""
    found = _check_shapes(entry, {key: array.shape for key, array in arrays.items()}, where)
    for key, classes in found.items():
        if not np.array_equal(np.unique(arrays[key]), np.arange(classes)):
            raise DataError(f"{where}: {key} of '{entry.name}' should be 0…{classes - 1}, each at least once.")


def write_prepared(name: str, arrays: Arrays) -> Path:
    """Writes NAME.npz completely or not at all."""
    path = prepared_path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's stub takes allow_pickle for one of the arrays
    return path


_open: WeakValueDictionary[tuple[Path, int, int], Dataset] = WeakValueDictionary()


def load_dataset(name: str) -> Dataset:
    """A prepared dataset by name. All streams of a process share one copy of its pixels.

    Raises:
        MissingDataError: it is not prepared on this machine; the message says how to get it.
    """
    if name == "digits":
        return _digits()
    entry, path = source(name), prepared_path(name)
    if not path.exists():
        raise MissingDataError(
            f"'{name}' is not prepared: {path} does not exist. Run `remnant data fetch {name}`, or "
            f"`remnant data add {name} PATH` with {entry.wanted}."
        )
    stat = path.stat()
    key = (path, stat.st_mtime_ns, stat.st_size)
    dataset = _open.get(key)
    if dataset is None:
        classes = _check_shapes(entry, _shapes(path, entry.limit), path)
        height, width, *colours = entry.image
        dataset = _open[key] = Dataset(name, _Npz(path, classes), (*(colours or [1]), height, width))
    return dataset


def _digits() -> Dataset:
    """scikit-learn's 1,797 digits of 8×8 pixels from 0 to 16. Every fifth image of each digit is the test part."""
    try:
        datasets = importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise MissingExtraError(
            "'digits' comes with scikit-learn, which is not installed: pip install scikit-learn."
        ) from error
    images, labels = (array.astype(np.uint8) for array in datasets.load_digits(return_X_y=True))
    test = np.zeros(len(labels), bool)
    for digit in range(10):
        test[np.flatnonzero(labels == digit)[4::5]] = True
    arrays: Arrays = {}
    for part, rows in (("train", ~test), ("test", test)):
        arrays |= {f"{part}_images": images[rows].reshape(-1, 8, 8), f"{part}_labels": labels[rows]}
    return Dataset("digits", arrays, (1, 8, 8))


@dataclass(frozen=True)
class Status:
    """One dataset on this machine. Its state is "ready", "missing" or "damaged"; `problem` is empty if it is ready."""

    name: str
    title: str
    path: Path | None
    train: int
    test: int
    bytes: int
    state: str
    problem: str

    @property
    def ready(self) -> bool:
        return self.state == "ready"


def status() -> list[Status]:
    """The state of every dataset: ready, missing or damaged."""
    return [_status(name) for name in DATASETS]


def _status(name: str) -> Status:
    path = None if name == "digits" else prepared_path(name)
    title = "scikit-learn's digits, 8×8" if path is None else SOURCES[name].title
    train, test, state, problem = 0, 0, "ready", ""
    try:
        dataset = load_dataset(name)
        train, test = (len(dataset.arrays[f"{part}_labels"]) for part in ("train", "test"))
    except (MissingDataError, MissingExtraError) as error:
        state, problem = "missing", str(error)
    except DataError as error:
        state, problem = "damaged", str(error)
    size = path.stat().st_size if path is not None and path.exists() else 0
    return Status(name, title, path, train, test, size, state, problem)


def state_of(name: str) -> str:
    """Whether a dataset is "ready", "missing" or "damaged". Does not import scikit-learn."""
    if name == "digits":
        return "ready" if find_spec("sklearn") else "missing"
    return _status(name).state
