"""Damaged and hostile data files: each gives one sentence, takes little memory, and leaves other datasets alone."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import fuzz_archives
import numpy as np
import pytest
from fuzz import FAULTS, FUZZERS
from fuzz_archives import SETS, folder, mnist, small, tiny_imagenet
from originals import digits_like, idx, picture, write_tar, write_zip
from typer.testing import CliRunner

from remnant.cli import app
from remnant.data import DataError, load_dataset, state_of, status
from remnant.data.sets import store
from remnant.data.sets.image_formats import decode
from remnant.data.sets.pickles import as_array, read_pickle
from remnant.data.sets.prepare import read_originals
from remnant.data.sets.sources import Source

assert fuzz_archives  # registers its fuzzers
HUGE = 2**40


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "store"
    monkeypatch.setenv("REMNANT_DATA", str(folder))
    return folder


@pytest.mark.parametrize("name", [name for name in FUZZERS if name.startswith("archives")])
def test_damaged_data_is_refused_or_read_as_it_was(name: str) -> None:
    counts = FUZZERS[name].run(1, 24)
    assert counts.total() == 24
    assert not any(counts[fault] for fault in FAULTS), counts


@contextmanager
def little_memory() -> Iterator[None]:
    """Fails if the block allocates more than 16 MiB at a time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def refused(kind: str, path: Path, sentence: str) -> None:
    name, sizes, _ = SETS[kind]
    limit = patch.object(Source, "limit", 2**22)
    with small(name, *sizes), limit, little_memory(), pytest.raises(DataError, match=sentence):
        read_originals(name, path)


# --- archives that unpack to more than they should ----------------------------------------------------------------

ZEROS = bytes(2**25)
TOO_LARGE = r"holds over [\d,]+ bytes, more than the dataset has. Give "


def test_a_small_tar_that_unpacks_to_much_is_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "bomb.tar.gz", {"data_batch_1": ZEROS})
    assert path.stat().st_size < 10**6
    refused("cifar10", path, TOO_LARGE)


def test_a_tar_whose_header_is_endless_is_refused(tmp_path: Path) -> None:
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, len(ZEROS)
    (tmp_path / "bomb.tar.gz").write_bytes(gzip.compress(header.tobuf() + ZEROS, 1))
    refused("cifar10", tmp_path / "bomb.tar.gz", TOO_LARGE)


def test_a_tar_that_declares_a_sparse_file_is_refused(tmp_path: Path) -> None:
    header = tarfile.TarInfo("data_batch_1")
    header.pax_headers = {"GNU.sparse.map": f"{HUGE},0", "GNU.sparse.size": str(HUGE)}
    (tmp_path / "bomb.tar").write_bytes(header.tobuf(tarfile.PAX_FORMAT) + bytes(1024))
    refused("cifar10", tmp_path / "bomb.tar", TOO_LARGE)


def test_a_gzip_that_unpacks_to_much_is_refused(tmp_path: Path) -> None:
    name = "train-images-idx3-ubyte"
    path = folder(tmp_path / "raw", {**mnist(), f"{name}.gz": gzip.compress(ZEROS, 1)})
    (path / name).unlink()
    refused("mnist", path, TOO_LARGE)


@pytest.mark.parametrize("honest", [True, False])
def test_a_zip_that_unpacks_to_much_is_refused(tmp_path: Path, honest: bool) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data_batch_1", ZEROS)
    content = (tmp_path / "bomb.zip").read_bytes()
    if not honest:
        content = content.replace(struct.pack("<I", len(ZEROS)), struct.pack("<I", 1000))
    (tmp_path / "bomb.zip").write_bytes(content)
    refused("cifar10", tmp_path / "bomb.zip", TOO_LARGE if honest else "is damaged")


def test_a_matlab_file_that_unpacks_to_much_is_refused(tmp_path: Path) -> None:
    packed = zlib.compress(ZEROS, 1)
    head = b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM"
    content = head + struct.pack("<II", 15, len(packed)) + packed
    refused("svhn", folder(tmp_path / "raw", {"train_32x32.mat": content}), TOO_LARGE)


def test_an_image_of_too_many_pixels_is_refused() -> None:
    wide = picture(np.zeros((9_000, 9_000), np.uint8))
    with little_memory(), pytest.raises(DataError, match="pixels are too many"):
        decode(wide, "wide.png", 1)


def test_more_images_than_the_dataset_has_are_refused_before_they_are_read(tmp_path: Path) -> None:
    names = {f"tiny/train/n{c}/{i}.JPEG": b"" for c in (1, 9) for i in range(200)}
    refused("tiny_imagenet", write_zip(tmp_path / "many.zip", tiny_imagenet() | names), TOO_LARGE)


def sparse(path: Path, size: int = HUGE) -> Path:
    with open(path, "wb") as file:
        file.truncate(size)
    return path


@pytest.mark.parametrize("name", ["archive.zip", "raw/train-images-idx3-ubyte"])
def test_a_sparse_file_is_refused_by_its_size(tmp_path: Path, name: str) -> None:
    raw = folder(tmp_path / "raw", mnist())
    path = sparse(tmp_path / name)
    refused("mnist", raw if name.startswith("raw") else path, TOO_LARGE)


# --- pickles ------------------------------------------------------------------------------------------------------


def call(module: str, name: str, arguments: bytes) -> bytes:
    """A pickle of {"data": module.name(*arguments)}."""
    return b"\x80\x02}U\x04datac" + f"{module}\n{name}\n".encode() + arguments + b"Rs."


GIB = b"J" + struct.pack("<i", 2**30)
LIST = b"]q\x00(" + b"K\x00" * 1000 + b"e"
LISTS = LIST + b"".join(b"](" + b"h" + bytes([depth]) + (b"h" + bytes([depth])) * 999 + b"eq" + bytes([depth + 1])
                        for depth in range(4))  # fmt: skip


@pytest.mark.parametrize(
    "data",
    [
        call("builtins", "bytearray", GIB + b"\x85"),
        call("numpy", "ndarray", GIB + b"\x85\x85"),
        call("numpy._core.multiarray", "_reconstruct", b"cnumpy\nndarray\n" + GIB + b"\x85U\x01b\x87"),
        call("numpy", "dtype", b"U\x0bV1073741824\x85"),
        call("_codecs", "encode", b"X\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86"),
        b"\x80\x02}r" + struct.pack("<I", 2**27) + b".",
        b"\x80\x02}U\x04data" + LISTS + b"s.",
    ],
    ids=["bytearray", "ndarray", "_reconstruct", "dtype", "encode", "memo", "lists of lists"],
)
def test_a_small_pickle_cannot_ask_for_much_memory(data: bytes) -> None:
    with little_memory(), pytest.raises((DataError, ValueError, TypeError)):  # `add` turns them into sentences
        as_array(read_pickle(data, "batch")["data"])


# --- content that makes no sense ----------------------------------------------------------------------------------


def cifar10_with(**changes: object) -> dict[str, bytes]:
    files = dict(fuzz_archives.cifar10())
    batch = {"data": np.zeros((10, 3072), np.uint8), "labels": list(range(10))} | changes
    return files | {"cifar-10-batches-py/data_batch_3": pickle.dumps(batch)}


def matlab(labels: np.ndarray) -> bytes:
    from scipy.io import savemat

    content = io.BytesIO()
    savemat(content, {"X": np.zeros((32, 32, 3, 10), np.uint8), "y": labels})
    return content.getvalue()


Make = Callable[[], dict[str, bytes]]


@pytest.mark.parametrize(
    ("kind", "make", "sentence"),
    [
        ("mnist", lambda: mnist() | {"train-labels-idx1-ubyte": idx(np.uint8(3)[()])}, "but has .*train_labels ,"),
        ("mnist", lambda: mnist() | {"train-labels-idx1-ubyte": idx(np.arange(20, dtype=np.uint8))}, "should be 0…9"),
        (
            "mnist",
            lambda: mnist() | {"train-images-idx3-ubyte": b"\0\0\x08\x03" + b"\x80\0\0\0" * 2 + b"\0\0\0\x04"},
            "should hold 2147483648 × 2147483648 × 4 bytes but holds 0",
        ),
        ("cifar10", lambda: cifar10_with(labels=3), "expected an array, or a list of numbers"),
        ("cifar10", lambda: cifar10_with(labels=np.array(3)), "one label from 0 to 255 per image"),
        ("cifar10", lambda: cifar10_with(labels=[*range(9), 256]), "one label from 0 to 255 per image"),
        ("cifar10", lambda: cifar10_with(labels=np.arange(10) + 256), "one label from 0 to 255 per image"),
        ("cifar10", lambda: cifar10_with(labels=list(range(9))), "one label from 0 to 255 per image"),
        ("cifar10", lambda: cifar10_with(data=np.uint8(0)), "no 'data' of 3,072 bytes|expected an array"),
        ("svhn", lambda: dict.fromkeys(["train_32x32.mat", "test_32x32.mat"], matlab(np.arange(10) + 10)), "y should"),
        (
            "tiny_imagenet",
            lambda: tiny_imagenet() | {"tiny/val/val_annotations.txt": b"0.JPEG\tn1\nshort\n"},
            r"'short' in 'tiny/val/val_annotations.txt' has no class. Give tiny-imagenet-200.zip",
        ),
        ("tiny_imagenet", lambda: tiny_imagenet() | {"tiny/wnids.txt": b"\xff\xff"}, "UnicodeDecodeError.*Give tiny"),
        (
            "mini caches",
            lambda: fuzz_archives.mini_caches() | {
                "mini-imagenet-cache-val.pkl": pickle.dumps(
                    {"image_data": np.zeros((12, 84, 84, 3), np.uint8), "class_dict": {"a": [0, -1]}}
                )
            },
            "class_dict in mini-imagenet-cache-val.pkl should name every image once",
        ),
    ],
)  # fmt: skip
def test_content_that_makes_no_sense_gives_a_sentence(tmp_path: Path, kind: str, make: Make, sentence: str) -> None:
    refused(kind, folder(tmp_path / "raw", make()), sentence)


def test_a_zip_with_a_bad_table_of_contents_gives_a_sentence(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "cifar.zip", fuzz_archives.cifar100())
    content = path.read_bytes()
    path.write_bytes(content.replace(b"PK\x01\x02", b"PK\x01\x03"))
    refused("cifar100", path, "BadZipFile: Bad magic number for central directory.*Give cifar-100-python.tar.gz")


# --- prepared datasets --------------------------------------------------------------------------------------------


def bad_table(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"PK\x01\x02", b"PK\x01\x03"))


def bad_header(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"{'descr'", b"((((((((", 1))


def bad_labels(path: Path) -> None:
    arrays = digits_like()
    arrays["test_labels"][3] = 10
    store.write_prepared("mnist", arrays)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("spoil", [bad_table, bad_header, bad_labels, empty, sparse, a_folder])
def test_one_damaged_dataset_is_named_and_the_others_are_listed(
    spoil: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    with small("mnist", 20, 10, 10), small("fashion_mnist", 20, 10, 10):
        path = store.write_prepared("mnist", digits_like())
        store.write_prepared("fashion_mnist", digits_like())
        spoil(path)
        rows = {row.name: row for row in status()}
        assert (rows["mnist"].state, rows["fashion_mnist"].state) == ("damaged", "ready")
        assert state_of("mnist") == "damaged"
        with pytest.raises(DataError, match=rf"{path} is damaged .*Remove it and prepare the dataset again"):
            load_dataset("mnist").arrays["test_labels"]
        shown = CliRunner().invoke(app, ["data", "status"])
        assert shown.exit_code == 0
        assert f"{path} is damaged" in shown.output
        listed = CliRunner().invoke(app, ["list", "benchmarks"])
        assert listed.exit_code == 0
        assert "mnist (damaged)" in listed.output
        assert "permuted-fashion" in listed.output
