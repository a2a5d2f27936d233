"""Fuzzers of data files: archives, compressed files, pickles, MATLAB files, images and prepared datasets."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import random
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
from fuzz import Counts, damaged, fuzzer, outcome
from originals import digits_like, idx, picture, write_tar, write_zip

from remnant.data.sets import store
from remnant.data.sets.prepare import read_originals
from remnant.data.sets.sources import SOURCES, Arrays

Files = dict[str, bytes]
rng = np.random.default_rng(5)


@contextmanager
def small(name: str, train: int, test: int, classes: int) -> Iterator[None]:
    """Lets a dataset have the counts of these small files."""
    entry = replace(SOURCES[name], counts=((train, test),), classes=(classes,), coarse=2 if name == "cifar100" else 0)
    with patch.dict(SOURCES, {name: entry}):
        yield


def photographs(count: int, side: int) -> np.ndarray:
    return rng.integers(0, 256, (count, side, side, 3), np.uint8)


@cache
def mnist() -> Files:
    arrays = digits_like()
    parts = {"train": "train", "test": "t10k"}
    return {
        f"{parts[part]}-{kind}-idx{arrays[f'{part}_{kind}'].ndim}-ubyte": idx(arrays[f"{part}_{kind}"])
        for part in parts
        for kind in ("images", "labels")
    }


@cache
def cifar10() -> Files:
    names = [f"cifar-10-batches-py/{name}" for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")]
    batch = {b"data": photographs(10, 32).reshape(10, 3072), b"labels": list(range(10)), b"batch_label": b"a batch"}
    return {name: pickle.dumps(batch, protocol) for protocol, name in enumerate(names)}


@cache
def cifar100() -> Files:
    batch = {"data": photographs(4, 32).reshape(4, 3072), "fine_labels": [0, 1, 2, 3], "coarse_labels": [0, 0, 1, 1]}
    return {"train": pickle.dumps(batch, 4), "test": pickle.dumps(batch, 2), "meta": b"junk"}


@cache
def svhn() -> Files:
    from scipy.io import savemat

    files = {}
    for part, compressed in (("train", True), ("test", False)):
        content = io.BytesIO()
        images, labels = photographs(10, 32).transpose(1, 2, 3, 0), np.arange(1, 11)[:, None]
        savemat(content, {"X": images, "y": labels}, do_compression=compressed)
        files[f"{part}_32x32.mat"] = content.getvalue()
    return files


@cache
def notmnist() -> Files:
    image = rng.integers(0, 256, (28, 28), np.uint8)
    return {f"{part}/{letter}/{part}.png": picture(image) for part in ("Train", "Test") for letter in "ABCDEFGHIJ"}


@cache
def tiny_imagenet() -> Files:
    files = {"tiny/wnids.txt": b"n9\nn1\n", "tiny/val/val_annotations.txt": b"0.JPEG\tn1\t0\t9\n1.JPEG\tn9\t0\t9\n"}
    files |= {f"tiny/train/{n}/images/{n}_0.JPEG": picture(photographs(1, 64)[0], "JPEG") for n in ("n1", "n9")}
    return files | {f"tiny/val/images/{i}.JPEG": picture(photographs(1, 64)[0], "JPEG") for i in (0, 1)}


@cache
def mini_caches() -> Files:
    files = {}
    for protocol, part in enumerate(("train", "val", "test"), 2):
        content = {"image_data": photographs(12, 84), "class_dict": {"a": list(range(6)), "b": np.arange(6, 12)}}
        files[f"mini-imagenet-cache-{part}.pkl"] = pickle.dumps(content, protocol)
    return files


@cache
def mini_pickles() -> Files:
    labels = np.array(["n01", "n02"] * 6)
    content = {"images": photographs(12, 84), "labels": labels}
    return {"train.pkl": pickle.dumps(content, 5), "test.pkl": pickle.dumps(content | {"labels": list(labels)}, 2)}


def folder(path: Path, files: Files) -> Path:
    path.mkdir()
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


# dataset, its small counts (train, test, classes), its files
SETS: dict[str, tuple[str, tuple[int, int, int], Callable[[], Files]]] = {
    "mnist": ("mnist", (20, 10, 10), mnist),
    "cifar10": ("cifar10", (50, 10, 10), cifar10),
    "cifar100": ("cifar100", (4, 4, 4), cifar100),
    "svhn": ("svhn", (10, 10, 10), svhn),
    "notmnist": ("notmnist", (10, 10, 10), notmnist),
    "tiny_imagenet": ("tiny_imagenet", (2, 2, 2), tiny_imagenet),
    "mini caches": ("miniimagenet", (30, 6, 6), mini_caches),
    "mini pickles": ("miniimagenet", (12, 12, 2), mini_pickles),
}


def same(one: Arrays, other: Arrays) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)


def is_valid(name: str, arrays: Arrays) -> bool:
    """Whether arrays look like the dataset: bytes, as many labels as images, and labels within the classes."""
    entry = SOURCES[name]
    for part, count in zip(("train", "test"), entry.counts[0], strict=True):
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        if images.shape != (count, *entry.image) or labels.shape != (count,) or labels.max() >= entry.classes[0]:
            return False
    return all(array.dtype == np.uint8 for array in arrays.values())


def attack(seed: int, count: int, case: Callable[[random.Random, str, Path, Arrays], str]) -> Counts:
    """Runs `case` on every dataset in turn, with its undamaged arrays."""
    counts, dice, whole = Counts(), random.Random(seed), dict[str, Arrays]()
    with tempfile.TemporaryDirectory() as place:
        for number in range(count):
            kind = list(SETS)[number % len(SETS)]
            name, sizes, files = SETS[kind]
            with small(name, *sizes), tempfile.TemporaryDirectory(dir=place) as scratch:
                if kind not in whole:
                    whole[kind] = read_originals(name, folder(Path(scratch) / "whole", files()))
                arrays = whole[kind]
                counts[outcome(lambda: case(dice, kind, Path(scratch), arrays))] += 1  # noqa: B023
    return counts


def _container(pack: Callable[[Path, Files], Path], suffix: str) -> Callable[[int, int], Counts]:
    """A fuzzer of an archive format with checksums: whatever is read must be what was packed."""

    def case(dice: random.Random, kind: str, scratch: Path, whole: Arrays) -> str:
        name, _, files = SETS[kind]
        path = pack(scratch / f"archive{suffix}", files())
        path.write_bytes(damaged(path.read_bytes(), dice))
        return "equal" if same(read_originals(name, path), whole) else "silent"

    return lambda seed, count: attack(seed, count, case)


def write_deflated(path: Path, files: Files) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


archive_zip = fuzzer("archives: zip, stored")(_container(write_zip, ".zip"))
archive_deflated = fuzzer("archives: zip, deflated")(_container(write_deflated, ".zip"))
archive_tar = fuzzer("archives: tar.gz")(_container(write_tar, ".tar.gz"))


@fuzzer("archives: gz")
def archive_gz(seed: int, count: int) -> Counts:
    """MNIST's gzipped files in a folder, one of them damaged."""

    def case(dice: random.Random, kind: str, scratch: Path, whole: Arrays) -> str:
        files = {f"{name}.gz": gzip.compress(content) for name, content in mnist().items()}
        chosen = dice.choice(sorted(files))
        files[chosen] = damaged(files[chosen], dice)
        with small("mnist", *SETS["mnist"][1]):
            found = read_originals("mnist", folder(scratch / "raw", files))
        return "equal" if same(found, digits_like()) else "silent"

    return attack(seed, count, case)


@fuzzer("archives: content (idx, pickle, mat, png, jpeg)", long=4000)
def content(seed: int, count: int) -> Counts:
    """Files damaged before they were packed, so no checksum shows it: the arrays must still look like the dataset."""

    def case(dice: random.Random, kind: str, scratch: Path, whole: Arrays) -> str:
        name, _, files = SETS[kind]
        chosen = dice.choice(sorted(files()))
        broken = damaged(files()[chosen], dice)
        found = read_originals(name, folder(scratch / "raw", files() | {chosen: broken}))
        return "equal" if same(found, whole) else "unchecked" if is_valid(name, found) else "silent"

    return attack(seed, count, case)


@fuzzer("archives: prepared npz")
def prepared(seed: int, count: int) -> Counts:
    """Prepared files: every array is what was written, and asking for the state of the dataset raises nothing."""

    def case(dice: random.Random, kind: str, scratch: Path, whole: Arrays) -> str:
        name = SETS[kind][0]
        with patch.dict(os.environ, {"REMNANT_DATA": str(scratch)}):
            path = store.write_prepared(name, whole)
            path.write_bytes(damaged(path.read_bytes(), dice))
            store.state_of(name)
            dataset = store.load_dataset(name)
            return "equal" if same({key: dataset.arrays[key] for key in whole}, whole) else "silent"

    return attack(seed, count, case)
