"""Small original files in their real formats."""

from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from remnant.data import data_root
from remnant.data.sets import sources

Arrays = dict[str, np.ndarray]
REAL_ROOT = data_root()  # before any test points elsewhere


def blank(name: str) -> Arrays:
    """A dataset in its real size whose images take no memory (one zero, seen N·H·W times)."""
    entry = sources.SOURCES[name]
    train, test = entry.counts[-1]
    arrays = {}
    for part, count in (("train", train), ("test", test)):
        arrays[f"{part}_images"] = np.broadcast_to(np.uint8(0), (count, *entry.image))
        arrays[f"{part}_labels"] = np.arange(count, dtype=np.int64) % entry.classes[-1]
        arrays[f"{part}_labels"] = arrays[f"{part}_labels"].astype(np.uint8)
        arrays[f"{part}_coarse"] = (arrays[f"{part}_labels"] // 5).astype(np.uint8)
    return arrays


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def idx_folder(folder: Path, arrays: Arrays, *, zipped: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part, prefix in (("train", "train"), ("test", "t10k")):
        for kind in ("images", "labels"):
            array = arrays[f"{part}_{kind}"]
            name = f"{prefix}-{kind}-idx{array.ndim}-ubyte"
            if zipped:
                (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
            else:
                (folder / name).write_bytes(idx(array))
    return folder


def digits_like(train: int = 20, test: int = 10, side: int = 28, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        "train_images": rng.integers(0, 256, (train, side, side), np.uint8),
        "train_labels": np.arange(train, dtype=np.uint8) % 10,
        "test_images": rng.integers(0, 256, (test, side, side), np.uint8),
        "test_labels": np.arange(test, dtype=np.uint8) % 10,
    }


def picture(array: np.ndarray, kind: str = "PNG") -> bytes:
    image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.fromarray(array).save(out, kind)
    return out.getvalue()


def write_tree(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def left_behind(folder: Path) -> Iterator[Path]:
    """Every file below a folder."""
    return (Path(top) / name for top, _, names in os.walk(folder) for name in names)
