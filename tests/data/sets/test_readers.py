"""Reads tiny files of each original format: pixels and labels are right, and damage is explained."""

import builtins
import importlib
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from originals import digits_like, idx, idx_folder, picture, write_tar, write_tree, write_zip

from remnant.data import DataError
from remnant.data.sets.array_formats import parse_idx
from remnant.data.sets.originals import Originals
from remnant.data.sets.pickles import as_array, read_pickle
from remnant.data.sets.prepare import READERS
from remnant.data.sets.sources import SOURCES

rng = np.random.default_rng(7)


def read_original(name: str, path: Path) -> dict[str, np.ndarray]:
    return READERS[name](Originals(path, SOURCES[name]))


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) and a[k].dtype == np.uint8 for k in a)


# --- IDX ----------------------------------------------------------------------------------------------------------


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, max_side=6)))
def test_an_idx_file_gives_back_the_array_it_was_made_from(array: np.ndarray) -> None:
    assert np.array_equal(parse_idx(idx(array), "file"), array)


@given(hnp.arrays(np.uint8, (3, 4, 5)), st.data())
def test_an_idx_file_cut_anywhere_is_refused_not_misread(array: np.ndarray, data: st.DataObject) -> None:
    whole = idx(array)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DataError, match="file"):
        parse_idx(whole[:cut], "file")


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_mnist_files_are_read_gzipped_or_not(tmp_path: Path, name: str, zipped: bool) -> None:
    arrays = digits_like()
    assert same(read_original(name, idx_folder(tmp_path / "raw", arrays, zipped=zipped)), arrays)


def test_a_missing_file_is_named_with_what_to_give(tmp_path: Path) -> None:
    folder = idx_folder(tmp_path / "raw", digits_like())
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"no file 't10k-labels-idx1-ubyte'.*Give a folder with"):
        read_original("mnist", folder)


def test_a_gzip_cut_short_is_called_damaged(tmp_path: Path) -> None:
    folder = idx_folder(tmp_path / "raw", digits_like(), zipped=True)
    file = folder / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"'train-images-idx3-ubyte.gz' is damaged.*Give a folder with"):
        read_original("mnist", folder)


# --- CIFAR --------------------------------------------------------------------------------------------------------


def cifar_batch(images: np.ndarray, **labels: np.ndarray) -> bytes:
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), 3072)
    # Python 2 wrote these: byte keys, lists of labels.
    return pickle.dumps({b"data": planes, **{k.encode(): v.tolist() for k, v in labels.items()}}, protocol=2)


def cifar10_files() -> tuple[dict[str, bytes], np.ndarray, np.ndarray]:
    images = rng.integers(0, 256, (12, 32, 32, 3), np.uint8)
    labels = np.arange(12, dtype=np.uint8) % 10
    files = {
        f"cifar-10-batches-py/data_batch_{i + 1}": cifar_batch(
            images[2 * i : 2 * i + 2], labels=labels[2 * i : 2 * i + 2]
        )
        for i in range(5)
    }
    files["cifar-10-batches-py/test_batch"] = cifar_batch(images[10:], labels=labels[10:])
    return files, images, labels


def test_cifar10_is_read_alike_from_folder_and_archive(tmp_path: Path) -> None:
    files, images, labels = cifar10_files()
    folder = read_original("cifar10", write_tree(tmp_path / "raw", files))
    archive = read_original("cifar10", write_tar(tmp_path / "cifar-10-python.tar.gz", files))
    wanted = {
        "train_images": images[:10],
        "train_labels": labels[:10],
        "test_images": images[10:],
        "test_labels": labels[10:],
    }
    assert same(folder, wanted)
    assert same(archive, wanted)


def test_cifar100_keeps_fine_and_coarse_labels_apart(tmp_path: Path) -> None:
    images = rng.integers(0, 256, (4, 32, 32, 3), np.uint8)
    fine, coarse = np.array([3, 99, 0, 50]), np.array([1, 19, 0, 7])
    batch = cifar_batch(images, fine_labels=fine, coarse_labels=coarse)
    arrays = read_original("cifar100", write_tree(tmp_path / "raw", {"train": batch, "test": batch, "meta": b"junk"}))
    assert arrays["train_labels"].tolist() == fine.tolist()
    assert arrays["test_coarse"].tolist() == coarse.tolist()
    assert np.array_equal(arrays["train_images"], images)


# --- pickles ------------------------------------------------------------------------------------------------------


class Hostile:
    def __init__(self, function: object, *args: object) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_a_command_does_not(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "ran"
    data = pickle.dumps({"data": Hostile(os.system, f"touch {trace}")}, protocol)
    with pytest.raises(DataError, match="was not loaded"):
        read_pickle(data, "batch")
    assert not trace.exists()


@pytest.mark.parametrize("function", [builtins.eval, getattr, importlib.import_module, np.load, np.fromfile])
def test_no_function_but_those_that_build_arrays_can_be_named(function: object) -> None:
    with pytest.raises(DataError, match="was not loaded"):
        read_pickle(pickle.dumps({"x": Hostile(function, "1")}), "batch")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_arrays_of_any_protocol_are_read(protocol: int) -> None:
    value = {"images": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": ["a", np.int64(3)]}
    read = read_pickle(pickle.dumps(value, protocol), "batch")
    assert np.array_equal(as_array(read["images"]), value["images"])
    assert read["labels"] == value["labels"]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("array", [np.asfortranarray(np.arange(6).reshape(2, 3)), np.array(["n01", "n2"]),
                                   np.arange(3, dtype=">i2")], ids=str)  # fmt: skip
def test_arrays_of_any_order_and_type_come_back_as_they_were(array: np.ndarray, protocol: int) -> None:
    read = as_array(read_pickle(pickle.dumps({"x": array}, protocol), "batch")["x"])
    assert read.tolist() == array.tolist()


def test_pickles_written_under_numpy_1_are_read() -> None:
    data = pickle.dumps({"images": np.arange(4, dtype=np.uint8)}, 2).replace(b"numpy._core", b"numpy.core")
    assert as_array(read_pickle(data, "batch")["images"]).tolist() == [0, 1, 2, 3]


# --- SVHN ---------------------------------------------------------------------------------------------------------


def test_svhn_puts_images_first_and_calls_the_digit_ten_zero(tmp_path: Path) -> None:
    matlab = pytest.importorskip("scipy.io")
    images = rng.integers(0, 256, (3, 32, 32, 3), np.uint8)
    for part in ("train", "test"):
        matlab.savemat(
            tmp_path / f"{part}_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": np.array([[1], [10], [9]])}
        )
    arrays = read_original("svhn", tmp_path)
    assert np.array_equal(arrays["train_images"], images)
    assert arrays["test_labels"].tolist() == [1, 0, 9]


def test_without_scipy_svhn_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(DataError, match=r"pip install scipy"):
        read_original("svhn", tmp_path)


# --- notMNIST -----------------------------------------------------------------------------------------------------


def notmnist_files(per_letter: int = 3) -> dict[str, bytes]:
    return {
        f"notMNIST_small/{letter}/{i:02d}.png": picture(np.full((28, 28), 20 * label + i, np.uint8))
        for label, letter in enumerate("ABCDEFGHIJ")
        for i in range(per_letter)
    }


def test_notmnist_leaves_broken_files_out_and_a_tenth_for_test(tmp_path: Path) -> None:
    files = notmnist_files() | {"notMNIST_small/A/broken.png": b"", "notMNIST_small/F/cut.png": b"\x89PNG\r\n\x1a\nxx"}
    arrays = read_original("notmnist", write_tar(tmp_path / "notMNIST_small.tar.gz", files))
    assert (len(arrays["train_labels"]), len(arrays["test_labels"])) == (27, 3)
    for part in ("train", "test"):  # each picture still has its own letter
        assert np.array_equal(arrays[f"{part}_images"][:, 5, 5] // 20, arrays[f"{part}_labels"])
    again = read_original("notmnist", write_tree(tmp_path / "raw", files))
    assert same(arrays, again)


def test_notmnist_train_and_test_folders_are_kept(tmp_path: Path) -> None:
    files = {n.replace("notMNIST_small", "Train"): b for n, b in notmnist_files(2).items()}
    files |= {n.replace("notMNIST_small", "Test"): b for n, b in notmnist_files(1).items()}
    arrays = read_original("notmnist", write_tree(tmp_path / "raw", files))
    assert (len(arrays["train_labels"]), len(arrays["test_labels"])) == (20, 10)


def test_notmnist_names_the_letters_it_misses(tmp_path: Path) -> None:
    files = {n: b for n, b in notmnist_files(1).items() if "/C/" not in n}
    with pytest.raises(DataError, match="folder C"):
        read_original("notmnist", write_tree(tmp_path / "raw", files))


# --- miniImageNet -------------------------------------------------------------------------------------------------


def photographs(count: int, value: int, side: int = 84) -> np.ndarray:
    return np.full((count, side, side, 3), value, np.uint8)


def test_miniimagenet_pickles_with_named_classes(tmp_path: Path) -> None:
    for part, count in (("train", 5), ("test", 1)):
        images = np.concatenate([photographs(count, 10), photographs(count, 20)])
        content = {"images": images, "labels": ["n02"] * count + ["n01"] * count}
        (tmp_path / f"{part}.pkl").write_bytes(pickle.dumps(content))
    arrays = read_original("miniimagenet", tmp_path)
    assert arrays["train_labels"].tolist() == [1] * 5 + [0] * 5
    assert arrays["test_images"][:, 0, 0, 0].tolist() == [10, 20]


def test_miniimagenet_few_shot_caches_are_divided_again_within_each_class(tmp_path: Path) -> None:
    for part, value in (("train", 0), ("val", 100), ("test", 200)):
        images = np.concatenate([photographs(6, value), photographs(6, value + 1)])
        content = {"image_data": images, "class_dict": {"n1": list(range(6)), "n2": list(range(6, 12))}}
        (tmp_path / f"mini-imagenet-cache-{part}.pkl").write_bytes(pickle.dumps(content))
    arrays = read_original("miniimagenet", tmp_path)
    assert np.bincount(arrays["train_labels"]).tolist() == [5] * 6
    assert np.bincount(arrays["test_labels"]).tolist() == [1] * 6
    assert arrays["test_images"][:, 0, 0, 0].tolist() == [0, 1, 100, 101, 200, 201]


def test_miniimagenet_image_folders_of_any_size(tmp_path: Path) -> None:
    files = {f"images/n{c}/{i}.jpg": picture(photographs(1, 40 * c, 100)[0], "JPEG") for c in (1, 2) for i in range(6)}
    arrays = read_original("miniimagenet", write_tree(tmp_path / "one", files))
    assert arrays["train_images"].shape == (10, 84, 84, 3)
    assert arrays["test_labels"].tolist() == [0, 1]
    parted = {
        ("train" if i < 4 else "test") + f"/n{c}/{i}.png": picture(photographs(1, c)[0])
        for c in (1, 2)
        for i in range(6)
    }
    arrays = read_original("miniimagenet", write_tree(tmp_path / "two", parted))
    assert np.bincount(arrays["train_labels"]).tolist() == [4, 4]
    assert np.bincount(arrays["test_labels"]).tolist() == [2, 2]


# --- Tiny ImageNet ------------------------------------------------------------------------------------------------


def test_tiny_imagenet_numbers_classes_as_its_own_list_does(tmp_path: Path) -> None:
    top = "tiny-imagenet-200/"
    files = {f"{top}wnids.txt": b"n9\nn1\n"}
    for wnid, value in (("n1", 30), ("n9", 200)):
        for i in range(2):
            grey_or_colour = photographs(1, value, 64)[0] if i else np.full((64, 64), value, np.uint8)
            files[f"{top}train/{wnid}/images/{wnid}_{i}.JPEG"] = picture(grey_or_colour, "JPEG")
    files[f"{top}val/images/val_0.JPEG"] = picture(photographs(1, 30, 64)[0], "JPEG")
    files[f"{top}val/images/val_1.JPEG"] = picture(photographs(1, 200, 64)[0], "JPEG")
    files[f"{top}val/val_annotations.txt"] = b"val_0.JPEG\tn1\t0\t0\t9\t9\nval_1.JPEG\tn9\t0\t0\t9\t9\n"
    files[f"{top}test/images/test_0.JPEG"] = b"never read"
    arrays = read_original("tiny_imagenet", write_tree(tmp_path / "raw", files))
    assert arrays["train_labels"].tolist() == [0, 0, 1, 1]
    assert (arrays["train_images"][:, 0, 0, 0] > 100).tolist() == [True, True, False, False]
    assert arrays["test_labels"].tolist() == [0, 1]
    assert (arrays["test_images"][:, 0, 0, 0] > 100).tolist() == [True, False]
    assert same(read_original("tiny_imagenet", write_zip(tmp_path / "tiny-imagenet-200.zip", files)), arrays)


def test_an_archive_that_is_none_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "cifar.tar.gz").write_bytes(b"<html>404</html>")
    with pytest.raises(DataError, match="neither a folder nor a complete"):
        read_original("cifar10", tmp_path / "cifar.tar.gz")
