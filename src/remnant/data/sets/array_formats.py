"""Readers of datasets that come as arrays: MNIST's IDX files, CIFAR's pickles and SVHN's MATLAB files."""

import importlib
import io
import math
import struct
import zlib
from collections import defaultdict

import numpy as np

from ..errors import DataError, MissingExtraError, explaining_damage
from .originals import Originals
from .pickles import as_array, read_pickle
from .sources import Arrays, Pixels

COMPRESSED = 15  # the type of a compressed element of a MATLAB file


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
    if len(data) - start != math.prod(shape):
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
        rows = as_array(batch["data"])
        if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != 3072:
            raise DataError(f"{where} has no 'data' of 3,072 bytes per image.")
        pieces[f"{part}_images"].append(np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)))
        for kind, key in label_keys.items():
            labels = as_array(batch[key])
            if labels.shape != rows.shape[:1] or not np.isin(labels, np.arange(256)).all():
                raise DataError(f"{where} should have one label from 0 to 255 per image in '{key}'.")
            pieces[f"{part}_{kind}"].append(labels.astype(np.uint8))
    return {key: np.concatenate(arrays) for key, arrays in pieces.items()}


def read_svhn(originals: Originals) -> Arrays:
    """Cropped digits in MATLAB files, with images along the last axis and the digit 0 labelled 10."""
    try:
        matlab = importlib.import_module("scipy.io")
    except ImportError as error:
        raise MissingExtraError("Reading SVHN's .mat files needs scipy: pip install scipy.") from error
    arrays = {}
    for part in ("train", "test"):
        data, where = originals.need(f"{part}_32x32.mat"), f"{originals.path}: {part}_32x32.mat"
        with explaining_damage(f"{where} is not a complete MATLAB file with X and y"):
            content = matlab.loadmat(io.BytesIO(_inflated(data, originals)), variable_names=["X", "y"])
            images, labels = np.asarray(content["X"]), np.asarray(content["y"]).reshape(-1)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
            raise DataError(f"{where}: X is {images.dtype} {images.shape}, not bytes of 32 × 32 × 3 × N.")
        if not np.isin(labels, np.arange(11)).all():
            raise DataError(f"{where}: y should hold the digits 1 to 9 and 10 (or 0) for the digit 0.")
        arrays[f"{part}_images"] = np.ascontiguousarray(images.transpose(3, 0, 1, 2))
        arrays[f"{part}_labels"] = (labels % 10).astype(np.uint8)
    return arrays


def _inflated(data: bytes, originals: Originals) -> bytes:
    """A MATLAB 5 file with its elements unpacked, so that its reader cannot unpack more bytes than are allowed."""
    if not data.startswith(b"MATLAB 5.0"):
        raise ValueError("it does not begin with 'MATLAB 5.0'")
    pieces, at = [data[:128]], 128
    while at < len(data):
        kind, size = struct.unpack_from("<II" if data[126:128] == b"IM" else ">II", data, at)
        piece = data[at : at + 8 + size]
        if kind == COMPRESSED:
            unpacker = zlib.decompressobj()
            piece = unpacker.decompress(piece[8:], originals.limit + 1)
            originals.check_size(sum(map(len, pieces)) + len(piece))
            if not unpacker.eof:
                raise ValueError("a compressed part is cut short")
        pieces.append(piece)
        at += 8 + size
    return b"".join(pieces)
