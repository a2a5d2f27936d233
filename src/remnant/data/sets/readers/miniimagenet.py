"""miniImageNet in its three common forms, always 84×84. Of each class, five sixths train and one sixth tests."""

from typing import Any

import numpy as np

from ...errors import DataError
from .images import class_folders, read_classes
from .pickles import read_pickle
from .tree import Arrays, Pixels, Tree

SIZE = (84, 84)
_CACHES = (
    ("mini-imagenet-cache-train.pkl",),
    ("mini-imagenet-cache-val.pkl", "mini-imagenet-cache-validation.pkl"),
    ("mini-imagenet-cache-test.pkl",),
)


def read_miniimagenet(tree: Tree, wanted: str) -> Arrays:
    if tree.find(*_CACHES[0]):
        return _from_caches(tree, wanted)
    if tree.find("train.pkl"):
        return _from_pickles(tree, wanted)
    return _from_folders(tree, wanted)


def _pickle(tree: Tree, wanted: str, names: tuple[str, ...], images: str, other: str) -> tuple[Pixels, Any]:
    """The images in a pickle, and the other value that goes with them."""
    where = f"{tree.where}: {names[0]}"
    batch = read_pickle(tree.need(wanted, *names), where)
    if absent := {images, other} - batch.keys():
        raise DataError(f"{where} has no '{min(absent)}'.")
    pixels = np.asarray(batch[images])
    if pixels.ndim != 4 or pixels.shape[1:] != (*SIZE, 3):
        raise DataError(f"{where}: images have shape {pixels.shape}, not N × 84 × 84 × 3.")
    if pixels.dtype != np.uint8:
        raise DataError(f"{where}: images are {pixels.dtype}, not bytes.")
    return pixels, batch[other]


def _from_pickles(tree: Tree, wanted: str) -> Arrays:
    """train.pkl and test.pkl: dictionaries of `images` and `labels`, already divided 500 to 100 per class."""
    content = {}
    for part in ("train", "test"):
        images, labels = _pickle(tree, wanted, (f"{part}.pkl",), "images", "labels")
        content[part] = images, np.asarray(labels).reshape(-1)
        if len(images) != len(content[part][1]):
            raise DataError(f"{tree.where}: {part}.pkl has {len(images)} images but {len(content[part][1])} labels.")
    # Labels may be numbers or WordNet names; in both cases they count from 0 in sorted order.
    names = np.unique(content["train"][1])
    arrays = {}
    for part, (images, labels) in content.items():
        if not np.isin(labels, names).all():
            raise DataError(
                f"{tree.where}: test.pkl has classes that train.pkl does not have: this is the few-shot split."
            )
        arrays[f"{part}_images"] = images
        arrays[f"{part}_labels"] = np.searchsorted(names, labels).astype(np.uint8)
    return arrays


def _from_caches(tree: Tree, wanted: str) -> Arrays:
    """The few-shot caches (64 + 16 + 20 classes) with `image_data` and `class_dict`, divided again within each class."""
    classes: list[Pixels] = []
    for names in _CACHES:
        images, rows = _pickle(tree, wanted, names, "image_data", "class_dict")
        classes += [images[np.asarray(each)] for each in rows.values()]
    return _five_sixths(classes)


def _from_folders(tree: Tree, wanted: str) -> Arrays:
    """Folders of images per class: divided by train/ and test/ if both hold all classes, otherwise again."""
    classes = class_folders(tree.names)
    if len(classes) < 2:
        raise DataError(f"{tree.where} has neither the pickles nor a folder of images per class. Give {wanted}.")
    train, test = (class_folders(n for n in tree.names if part in n.split("/")[:-1]) for part in ("train", "test"))
    if not train.keys() == test.keys() == classes.keys():
        return _five_sixths([read_classes(tree, [files], SIZE)[0] for files in classes.values()])
    arrays = {}
    for part, folders in (("train", train), ("test", test)):
        arrays[f"{part}_images"], arrays[f"{part}_labels"] = read_classes(tree, folders.values(), SIZE)
    return arrays


def _five_sixths(classes: list[Pixels]) -> Arrays:
    """The first five sixths of each class train (500 of 600), the rest test."""
    arrays = {}
    for part, chosen in (
        ("train", [images[: len(images) * 5 // 6] for images in classes]),
        ("test", [images[len(images) * 5 // 6 :] for images in classes]),
    ):
        arrays[f"{part}_images"] = np.concatenate(chosen)
        arrays[f"{part}_labels"] = np.repeat(np.arange(len(classes), dtype=np.uint8), [len(each) for each in chosen])
    return arrays
