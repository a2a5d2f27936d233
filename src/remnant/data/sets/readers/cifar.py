"""CIFAR's pickled batches: rows of 3,072 bytes, one colour plane after another."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .pickles import read_pickle
from .tree import Tree


def _images(batch: dict[str, Any], where: str) -> NDArray[np.uint8]:
    rows = np.asarray(batch.get("data"))
    if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != 3072:
        raise DataError(f"{where} has no 'data' of 3,072 bytes per image.")
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _labels(batch: dict[str, Any], key: str, where: str) -> NDArray[np.uint8]:
    if key not in batch:
        raise DataError(f"{where} has no '{key}'.")
    return np.asarray(batch[key], np.uint8)


def _batch(tree: Tree, name: str, wanted: str) -> tuple[dict[str, Any], str]:
    where = f"{tree.where}: {name}"
    return read_pickle(tree.need(wanted, name), where), where


def read_cifar10(tree: Tree, wanted: str) -> dict[str, NDArray[np.uint8]]:
    train = [_batch(tree, f"data_batch_{i}", wanted) for i in range(1, 6)]
    test, where = _batch(tree, "test_batch", wanted)
    return {
        "train_images": np.concatenate([_images(*each) for each in train]),
        "train_labels": np.concatenate([_labels(batch, "labels", place) for batch, place in train]),
        "test_images": _images(test, where),
        "test_labels": _labels(test, "labels", where),
    }


def read_cifar100(tree: Tree, wanted: str) -> dict[str, NDArray[np.uint8]]:
    arrays = {}
    for part in ("train", "test"):
        batch, where = _batch(tree, part, wanted)
        arrays[f"{part}_images"] = _images(batch, where)
        arrays[f"{part}_labels"] = _labels(batch, "fine_labels", where)
        arrays[f"{part}_coarse"] = _labels(batch, "coarse_labels", where)
    return arrays
