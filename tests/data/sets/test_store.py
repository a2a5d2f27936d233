"""Prepared datasets are found, written completely or not at all, and refused when they are damaged or another dataset."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from originals import digits_like, idx_folder, left_behind

from remnant.data import DataError, MissingDataError, add, data_root, load_dataset, status
from remnant.data.sets import store


def test_the_store_is_where_the_environment_says_else_in_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REMNANT_DATA", str(tmp_path / "here"))
    assert data_root() == tmp_path / "here"
    monkeypatch.delenv("REMNANT_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".cache" / "remnant"


def test_a_missing_set_says_how_to_get_it(root: Path) -> None:
    with pytest.raises(MissingDataError) as caught:
        load_dataset("mnist")
    message = str(caught.value)
    for words in (
        "remnant data fetch mnist",
        "remnant data add mnist PATH",
        str(root / "mnist.npz"),
        "train-images-idx3",
    ):
        assert words in message


def test_an_unknown_set_suggests_the_nearest() -> None:
    with pytest.raises(DataError, match="Did you mean 'cifar100'"):
        load_dataset("cifar-100")
    with pytest.raises(DataError, match="Did you mean 'fashion_mnist'"):
        add("fashionmnist", ".")


def test_added_files_come_back_as_the_arrays_they_hold(tmp_path: Path, small_counts: Callable[..., None]) -> None:
    small_counts("mnist", 20, 10, 10)
    arrays = digits_like()
    path = add("mnist", idx_folder(tmp_path / "raw", arrays))
    mnist = load_dataset("mnist")
    assert path == data_root() / "mnist.npz"
    assert np.array_equal(mnist.arrays["train_images"], arrays["train_images"])
    assert np.array_equal(mnist.arrays["test_labels"], arrays["test_labels"])
    assert mnist.input_shape == (1, 28, 28)


def test_part_of_a_set_is_not_taken_for_the_set(tmp_path: Path, root: Path) -> None:
    with pytest.raises(DataError, match=r"should have 60,000 \+ 10,000 images.*but has train_images 20 × 28 × 28"):
        add("mnist", idx_folder(tmp_path / "raw", digits_like()))
    assert not root.exists()


def test_a_set_with_a_class_missing_is_refused(tmp_path: Path, small_counts: Callable[..., None]) -> None:
    small_counts("mnist", 20, 10, 10)
    arrays = digits_like()
    arrays["train_labels"][arrays["train_labels"] == 4] = 5
    with pytest.raises(DataError, match="each at least once"):
        add("mnist", idx_folder(tmp_path / "raw", arrays))


@pytest.mark.parametrize("moment", ["writing", "syncing", "renaming"])
def test_killed_while_writing_the_old_file_stands_and_no_half_is_left(
    moment: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write_prepared("mnist", digits_like(seed=1))
    before = (root / "mnist.npz").read_bytes()

    def half(file: object, **arrays: np.ndarray) -> None:
        file.write(b"PK half a file")  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    target, name, fake = {
        "writing": (store.np, "savez", half),
        "syncing": (os, "fsync", stop),
        "renaming": (os, "replace", stop),
    }[moment]
    monkeypatch.setattr(target, name, fake)
    with pytest.raises(KeyboardInterrupt):
        store.write_prepared("mnist", digits_like(seed=2))
    assert [path.name for path in left_behind(root)] == ["mnist.npz"]
    assert (root / "mnist.npz").read_bytes() == before


def test_a_full_disk_is_told_in_words(
    tmp_path: Path, small_counts: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_counts("mnist", 20, 10, 10)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.np, "savez", full)
    with pytest.raises(DataError, match=r"could not be written \(No space left on device\).*REMNANT_DATA"):
        add("mnist", idx_folder(tmp_path / "raw", digits_like()))


def test_a_damaged_file_is_called_damaged(root: Path, small_counts: Callable[..., None]) -> None:
    small_counts("mnist", 20, 10, 10)
    path = store.write_prepared("mnist", digits_like())
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(DataError, match="damaged"):
        load_dataset("mnist")
    assert {row.name: bool(row.problem) for row in status()}["mnist"]


def test_a_file_damaged_inside_is_called_damaged_when_read(small_counts: Callable[..., None]) -> None:
    small_counts("mnist", 20, 10, 10)
    path = store.write_prepared("mnist", digits_like())
    content = bytearray(path.read_bytes())
    content[4000] ^= 0xFF  # within the first images, past the header
    path.write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        load_dataset("mnist").arrays["train_images"]


def test_a_file_of_pickled_objects_is_never_loaded(root: Path) -> None:
    root.mkdir()
    np.savez(root / "mnist.npz", train_images=np.array([{}], object))
    with pytest.raises(DataError, match="damaged"):
        load_dataset("mnist")


def test_another_set_under_the_name_is_refused(root: Path, small_counts: Callable[..., None]) -> None:
    small_counts("mnist", 20, 10, 10)
    store.write_prepared("mnist", digits_like(side=32))
    with pytest.raises(DataError, match="of 28 × 28 with their labels, but has train_images 20 × 32 × 32"):
        load_dataset("mnist")


def test_many_users_of_a_set_share_one_copy_and_a_new_file_is_noticed(small_counts: Callable[..., None]) -> None:
    small_counts("mnist", 20, 10, 10)
    store.write_prepared("mnist", digits_like(seed=1))
    one, two = load_dataset("mnist"), load_dataset("mnist")
    assert one.arrays["train_images"] is two.arrays["train_images"]
    new = digits_like(seed=2)
    store.write_prepared("mnist", new)
    assert np.array_equal(load_dataset("mnist").arrays["train_images"], new["train_images"])


def test_each_array_is_read_once_and_only_when_asked_for(
    small_counts: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_counts("mnist", 20, 10, 10)
    store.write_prepared("mnist", digits_like())
    read: list[str] = []
    real = store._Npz.__missing__
    monkeypatch.setattr(store._Npz, "__missing__", lambda file, key: (read.append(key), real(file, key))[1])
    digits = load_dataset("mnist")
    for _ in range(2):
        digits.arrays["train_images"]
        digits.arrays["test_labels"]
    assert read == ["train_images", "test_labels"]
    with pytest.raises(DataError, match="no array 'train_coarse'"):
        digits.arrays["train_coarse"]


def test_status_tells_ready_from_missing(small_counts: Callable[..., None]) -> None:
    small_counts("mnist", 20, 10, 10)
    store.write_prepared("mnist", digits_like())
    rows = {row.name: row for row in status()}
    assert set(rows) == set(store.DATASETS)
    assert rows["mnist"].ready
    assert (rows["mnist"].train, rows["mnist"].test) == (20, 10)
    assert not rows["svhn"].ready


def test_digits_are_always_there_with_every_digit_in_both_parts() -> None:
    pytest.importorskip("sklearn")
    digits = load_dataset("digits")
    train, test = digits.arrays["train_labels"], digits.arrays["test_labels"]
    assert len(train) + len(test) == 1797
    assert np.bincount(test).min() >= 34
    pixels = {image.tobytes() for image in digits.arrays["train_images"]}
    assert not any(image.tobytes() in pixels for image in digits.arrays["test_images"])
