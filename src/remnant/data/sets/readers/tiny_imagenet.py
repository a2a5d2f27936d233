"""Tiny ImageNet: train/CLASS/images/*.JPEG, and a val folder whose labels stand in a text file. Val is the test part."""

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .images import class_folders, read_images
from .tree import Tree

SIZE = (64, 64)


def read_tiny_imagenet(tree: Tree, wanted: str) -> dict[str, NDArray[np.uint8]]:
    """Classes are numbered as in wnids.txt; images come class by class."""
    classes = tree.need(wanted, "wnids.txt").decode().split()
    wnids = tree.find("wnids.txt") or ""
    top = wnids.removesuffix("wnids.txt")
    parts = {"train": class_folders(tree, f"{top}train/"), "test": _val(tree, f"{top}val/")}
    arrays = {}
    for part, folders in parts.items():
        missing = [name for name in classes if not folders.get(name)]
        if missing:
            folder = "train" if part == "train" else "val"
            raise DataError(
                f"{tree.where}: {folder} has no images of {missing[0]} ({len(missing)} such classes). Give {wanted}."
            )
        names = [name for each in classes for name in folders[each]]
        arrays[f"{part}_images"] = read_images(tree, names, 3, SIZE)
        arrays[f"{part}_labels"] = np.repeat(np.arange(len(classes)), [len(folders[c]) for c in classes]).astype(
            np.uint8
        )
    return arrays


def _val(tree: Tree, under: str) -> dict[str, list[str]]:
    """By val_annotations.txt (FILE, CLASS, box), or by folders where someone has sorted them already."""
    listing = f"{under}val_annotations.txt"
    if listing not in tree.names:
        return class_folders(tree, under)
    held = set(tree.names)
    found: dict[str, list[str]] = {}
    for line in tree.read(listing).decode().splitlines():
        file, wnid = line.split("\t")[:2]
        name = f"{under}images/{file}"
        if name in held:
            found.setdefault(wnid, []).append(name)
    return found or class_folders(tree, under)
