"""MNIST's own format: a magic number, the sizes, then the bytes."""

import struct

import numpy as np

from ...errors import DataError
from .tree import Arrays, Pixels, Tree


def parse_idx(data: bytes, where: object) -> Pixels:
    """The array in an IDX file of unsigned bytes."""
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise DataError(f"{where} is not an IDX file of bytes.")
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise DataError(f"{where} ends within its header.")
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    if len(data) - start != int(np.prod(shape, dtype=np.int64)):
        raise DataError(f"{where} should hold {' × '.join(map(str, shape))} bytes but holds {len(data) - start}.")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def read_idx(tree: Tree, wanted: str) -> Arrays:
    """The four files of MNIST, and of the datasets that copy its format."""
    arrays = {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        for kind, dims in (("images", 3), ("labels", 1)):
            # Some copies of the files have a dot in place of the original's hyphen.
            names = [f"{prefix}-{kind}{mark}idx{dims}-ubyte{end}" for mark in "-." for end in ("", ".gz")]
            array = parse_idx(tree.need(wanted, *names), f"{tree.where}: {names[0]}")
            if array.ndim != dims:
                raise DataError(f"{tree.where}: {names[0]} has {array.ndim} dimensions, not {dims}.")
            arrays[f"{part}_{kind}"] = array
    return arrays
