"""Tiny ImageNet: train/CLASS/images/*.JPEG, and a val folder with its labels in a text file. Val is the test part."""

from ...errors import DataError
from .images import class_folders, read_classes
from .tree import Arrays, Tree

SIZE = (64, 64)


def read_tiny_imagenet(tree: Tree, wanted: str) -> Arrays:
    """Classes are numbered as in wnids.txt; images come class by class."""
    classes = tree.need(wanted, "wnids.txt").decode().split()
    top = (tree.find("wnids.txt") or "").removesuffix("wnids.txt")
    folders = {"train": class_folders(tree.names, f"{top}train/"), "val": _val(tree, f"{top}val/")}
    arrays = {}
    for folder, part in (("train", "train"), ("val", "test")):
        missing = [name for name in classes if not folders[folder].get(name)]
        if missing:
            raise DataError(
                f"{tree.where}: {folder} has no images of {missing[0]} ({len(missing)} such classes). Give {wanted}."
            )
        images, labels = read_classes(tree, [folders[folder][name] for name in classes], SIZE)
        arrays[f"{part}_images"], arrays[f"{part}_labels"] = images, labels
    return arrays


def _val(tree: Tree, under: str) -> dict[str, list[str]]:
    """Class → images by val_annotations.txt (FILE, CLASS, box), or by folder if they have been sorted already."""
    listing = f"{under}val_annotations.txt"
    if listing not in tree.names:
        return class_folders(tree.names, under)
    present = set(tree.names)
    found: dict[str, list[str]] = {}
    for line in tree.read(listing).decode().splitlines():
        file, wnid = line.split("\t")[:2]
        name = f"{under}images/{file}"
        if name in present:
            found.setdefault(wnid, []).append(name)
    return found or class_folders(tree.names, under)
