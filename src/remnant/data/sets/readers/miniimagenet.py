"""miniImageNet in the three forms it goes about in. Always 84×84; per class, five in six train and one in six tests."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .images import class_folders, read_images
from .pickles import read_pickle
from .tree import Tree

SIZE = (84, 84)
_CACHES = (
    ("mini-imagenet-cache-train.pkl",),
    ("mini-imagenet-cache-val.pkl", "mini-imagenet-cache-validation.pkl"),
    ("mini-imagenet-cache-test.pkl",),
)


def read_miniimagenet(tree: Tree, wanted: str) -> dict[str, NDArray[np.uint8]]:
    if tree.find(*_CACHES[0]):
        return _from_caches(tree, wanted)
    if tree.find("train.pkl"):
        return _from_pickles(tree, wanted)
    return _from_folders(tree, wanted)


def _pixels(value: Any, where: str) -> NDArray[np.uint8]:
    images = np.asarray(value)
    if images.ndim != 4 or images.shape[1:] != (*SIZE, 3):
        raise DataError(f"{where}: images have shape {images.shape}, not N × 84 × 84 × 3.")
    if images.dtype != np.uint8:
        raise DataError(f"{where}: images are {images.dtype}, not bytes.")
    return images


def _from_pickles(tree: Tree, wanted: str) -> dict[str, NDArray[np.uint8]]:
    """train.pkl and test.pkl: dictionaries of `images` and `labels`, already parted 500 to 100."""
    content = {}
    for part in ("train", "test"):
        where = f"{tree.where}: {part}.pkl"
        batch = read_pickle(tree.need(wanted, f"{part}.pkl"), where)
        absent = {"images", "labels"} - batch.keys()
        if absent:
            raise DataError(f"{where} has no '{min(absent)}'.")
        images, labels = _pixels(batch["images"], where), np.asarray(batch["labels"]).reshape(-1)
        if len(images) != len(labels):
            raise DataError(f"{where} has {len(images)} images but {len(labels)} labels.")
        content[part] = images, labels
    # Labels may be numbers or WordNet names; either way they count from 0 in sorted order.
    names = np.unique(content["train"][1])
    arrays = {}
    for part, (images, labels) in content.items():
        if not np.isin(labels, names).all():
            raise DataError(f"{tree.where}: test.pkl has classes that train.pkl has not: this is the few-shot split.")
        arrays[f"{part}_images"] = images
        arrays[f"{part}_labels"] = np.searchsorted(names, labels).astype(np.uint8)
    return arrays


def _from_caches(tree: Tree, wanted: str) -> dict[str, NDArray[np.uint8]]:
    """The few-shot caches (64 + 16 + 20 classes): `image_data` and `class_dict`; each class is parted anew."""
    classes: list[NDArray[np.uint8]] = []
    for names in _CACHES:
        where = f"{tree.where}: {names[0]}"
        batch = read_pickle(tree.need(wanted, *names), where)
        absent = {"image_data", "class_dict"} - batch.keys()
        if absent:
            raise DataError(f"{where} has no '{min(absent)}'.")
        images = _pixels(batch["image_data"], where)
        classes += [images[np.asarray(rows)] for rows in batch["class_dict"].values()]
    return _part(classes)


def _from_folders(tree: Tree, wanted: str) -> dict[str, NDArray[np.uint8]]:
    """Folders of images per class: parted by train/ and test/ where both hold the same classes, else anew."""
    every = class_folders(tree)
    if len(every) < 2:
        raise DataError(f"{tree.where} has neither the pickles nor a folder of images per class. Give {wanted}.")
    sides = {
        part: class_folders(Tree(tree.where, [n for n in tree.names if part in n.split("/")[:-1]], tree.read))
        for part in ("train", "test")
    }
    if sides["train"].keys() == sides["test"].keys() == every.keys():
        arrays = {}
        for part, folders in sides.items():
            names = [name for files in folders.values() for name in files]
            arrays[f"{part}_images"] = read_images(tree, names, 3, SIZE)
            arrays[f"{part}_labels"] = np.repeat(np.arange(len(folders)), [len(f) for f in folders.values()]).astype(
                np.uint8
            )
        return arrays
    return _part([read_images(tree, files, 3, SIZE) for files in every.values()])


def _part(classes: list[NDArray[np.uint8]]) -> dict[str, NDArray[np.uint8]]:
    """The first five sixths of each class train (500 of 600), the rest test."""
    cuts = [len(images) * 5 // 6 for images in classes]
    train = [images[:cut] for images, cut in zip(classes, cuts, strict=True)]
    test = [images[cut:] for images, cut in zip(classes, cuts, strict=True)]
    numbers = np.arange(len(classes), dtype=np.uint8)
    return {
        "train_images": np.concatenate(train),
        "train_labels": np.repeat(numbers, [len(images) for images in train]),
        "test_images": np.concatenate(test),
        "test_labels": np.repeat(numbers, [len(images) for images in test]),
    }
