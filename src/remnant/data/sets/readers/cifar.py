"""CIFAR's pickled batches: rows of 3,072 bytes, one colour plane after another."""

from typing import Any

import numpy as np

from ...errors import DataError
from .pickles import read_pickle
from .tree import Arrays, Pixels, Tree


def read_cifar10(tree: Tree, wanted: str) -> Arrays:
    train = [_batch(tree, f"data_batch_{i}", wanted) for i in range(1, 6)]
    test, where = _batch(tree, "test_batch", wanted)
    return {
        "train_images": np.concatenate([_images(*each) for each in train]),
        "train_labels": np.concatenate([_labels(batch, "labels", where) for batch, where in train]),
        "test_images": _images(test, where),
        "test_labels": _labels(test, "labels", where),
    }


def read_cifar100(tree: Tree, wanted: str) -> Arrays:
    arrays = {}
    for part in ("train", "test"):
        batch, where = _batch(tree, part, wanted)
        arrays[f"{part}_images"] = _images(batch, where)
        arrays[f"{part}_labels"] = _labels(batch, "fine_labels", where)
        arrays[f"{part}_coarse"] = _labels(batch, "coarse_labels", where)
    return arrays


def _batch(tree: Tree, name: str, wanted: str) -> tuple[dict[str, Any], str]:
    where = f"{tree.where}: {name}"
    return read_pickle(tree.need(wanted, name), where), where


def _images(batch: dict[str, Any], where: str) -> Pixels:
    rows = np.asarray(batch.get("data"))
    if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != 3072:
        raise DataError(f"{where} has no 'data' of 3,072 bytes per image.")
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _labels(batch: dict[str, Any], key: str, where: str) -> Pixels:
    if key not in batch:
        raise DataError(f"{where} has no '{key}'.")
    return np.asarray(batch[key], np.uint8)
