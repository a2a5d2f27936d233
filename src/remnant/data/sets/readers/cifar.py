"""CIFAR's pickled batches: rows of 3,072 bytes, one colour plane after another."""

from typing import Any

import numpy as np

from ...errors import DataError
from .pickles import read_pickle
from .tree import Arrays, Pixels, Tree


def read_cifar10(tree: Tree, wanted: str) -> Arrays:
    files = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
    return _read(tree, wanted, files, {"labels": "labels"})


def read_cifar100(tree: Tree, wanted: str) -> Arrays:
    files = {"train": ["train"], "test": ["test"]}
    return _read(tree, wanted, files, {"labels": "fine_labels", "coarse": "coarse_labels"})


def _read(tree: Tree, wanted: str, files: dict[str, list[str]], label_keys: dict[str, str]) -> Arrays:
    arrays = {}
    for part, names in files.items():
        batches = {f"{tree.where}: {name}": tree.need(wanted, name) for name in names}
        content = [(where, read_pickle(data, where)) for where, data in batches.items()]
        arrays[f"{part}_images"] = np.concatenate([_images(batch, where) for where, batch in content])
        for kind, key in label_keys.items():
            arrays[f"{part}_{kind}"] = np.concatenate([_labels(batch, key, where) for where, batch in content])
    return arrays


def _images(batch: dict[str, Any], where: str) -> Pixels:
    rows = np.asarray(batch.get("data"))
    if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != 3072:
        raise DataError(f"{where} has no 'data' of 3,072 bytes per image.")
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _labels(batch: dict[str, Any], key: str, where: str) -> Pixels:
    if key not in batch:
        raise DataError(f"{where} has no '{key}'.")
    return np.asarray(batch[key], np.uint8)
