"""Readers of datasets that come as arrays: MNIST's IDX files, CIFAR's pickles and SVHN's MATLAB files."""

import importlib
import io
import pickle
import struct
from collections import defaultdict
from typing import Any

import numpy as np

from ..errors import DataError, MissingExtraError
from .originals import Originals
from .sources import Arrays, Pixels

# The names in a pickle that rebuild an array or a string, in the spellings of Python 2 and 3 and numpy 1 and 2.
_HARMLESS = {
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
    ("collections", "OrderedDict"),
    ("builtins", "bytearray"),
}


def read_idx(originals: Originals) -> Arrays:
    """The four files of MNIST, and of the datasets that copy its format."""
    arrays = {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        for kind, dims in (("images", 3), ("labels", 1)):
            # Some copies of the files have a dot in place of the original's hyphen.
            names = [f"{prefix}-{kind}{mark}idx{dims}-ubyte{end}" for mark in "-." for end in ("", ".gz")]
            arrays[f"{part}_{kind}"] = parse_idx(originals.need(*names), f"{originals.path}: {names[0]}")
    return arrays


def parse_idx(data: bytes, where: object) -> Pixels:
    """The array in an IDX file of unsigned bytes: a magic number, the sizes, then the bytes."""
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise DataError(f"{where} is not an IDX file of bytes.")
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise DataError(f"{where} ends within its header.")
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    if len(data) - start != int(np.prod(shape, dtype=np.int64)):
        raise DataError(f"{where} should hold {' × '.join(map(str, shape))} bytes but holds {len(data) - start}.")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def read_cifar10(originals: Originals) -> Arrays:
    files = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
    return _read_cifar(originals, files, {"labels": "labels"})


def read_cifar100(originals: Originals) -> Arrays:
    label_keys = {"labels": "fine_labels", "coarse": "coarse_labels"}
    return _read_cifar(originals, {"train": ["train"], "test": ["test"]}, label_keys)


def _read_cifar(originals: Originals, files: dict[str, list[str]], label_keys: dict[str, str]) -> Arrays:
    """Joins pickled batches whose images are rows of 3,072 bytes, one colour plane after another."""
    pieces: dict[str, list[Pixels]] = defaultdict(list)
    for part, name in ((part, name) for part, names in files.items() for name in names):
        where = f"{originals.path}: {name}"
        batch = read_pickle(originals.need(name), where, "data", *label_keys.values())
        rows = np.asarray(batch["data"])
        if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != 3072:
            raise DataError(f"{where} has no 'data' of 3,072 bytes per image.")
        pieces[f"{part}_images"].append(np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)))
        for kind, key in label_keys.items():
            pieces[f"{part}_{kind}"].append(np.asarray(batch[key], np.uint8))
    return {key: np.concatenate(arrays) for key, arrays in pieces.items()}


def read_svhn(originals: Originals) -> Arrays:
    """Cropped digits in MATLAB files, with images along the last axis and the digit 0 labelled 10."""
    try:
        matlab = importlib.import_module("scipy.io")
    except ImportError as error:
        raise MissingExtraError("Reading SVHN's .mat files needs scipy: pip install 'remnant[svhn]'.") from error
    arrays = {}
    for part in ("train", "test"):
        data, where = originals.need(f"{part}_32x32.mat"), f"{originals.path}: {part}_32x32.mat"
        try:
            content = matlab.loadmat(io.BytesIO(data), variable_names=["X", "y"])
            images, labels = np.asarray(content["X"]), np.asarray(content["y"]).reshape(-1)
        except Exception as error:  # scipy's reader can raise anything on damaged files
            raise DataError(f"{where} is not a complete MATLAB file with X and y ({error}).") from error
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
            raise DataError(f"{where}: X is {images.dtype} {images.shape}, not bytes of 32 × 32 × 3 × N.")
        arrays[f"{part}_images"] = np.ascontiguousarray(images.transpose(3, 0, 1, 2))
        arrays[f"{part}_labels"] = (labels % 10).astype(np.uint8)
    return arrays


class _DataUnpickler(pickle.Unpickler):
    """Loads plain values and numpy arrays, and refuses anything that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _HARMLESS:
            raise DataError(f"it asks for '{module}.{name}', which data does not need and which could run code")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def read_pickle(data: bytes, where: object, *keys: str) -> dict[str, Any]:
    """The dictionary in a pickle, its keys as text; these `keys` must be there."""
    try:
        value = _DataUnpickler(io.BytesIO(data), encoding="latin1").load()
    except DataError as error:
        raise DataError(f"{where} was not loaded: {error}.") from error
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataError(f"{where} is not a complete pickle ({error}).") from error
    if not isinstance(value, dict):
        raise DataError(f"{where} holds a {type(value).__name__}, not a dictionary of arrays.")
    found = {key.decode("latin1") if isinstance(key, bytes) else str(key): item for key, item in value.items()}
    if absent := set(keys) - found.keys():
        raise DataError(f"{where} has no '{min(absent)}'.")
    return found
