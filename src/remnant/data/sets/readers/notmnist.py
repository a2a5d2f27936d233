"""notMNIST: folders A … J of 28×28 pictures; the small set has two broken files, which are left out."""

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .images import UNREADABLE, class_folders, decode
from .tree import Tree

LETTERS = "ABCDEFGHIJ"


def _read(tree: Tree, folders: dict[str, list[str]]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images, labels = [], []
    for label, letter in enumerate(LETTERS):
        for name in folders.get(letter, []):
            try:
                image = decode(tree.read(name), 1)
            except UNREADABLE as error:
                if isinstance(error, DataError):
                    raise
                continue
            if image.shape == (28, 28):
                images.append(image)
                labels.append(label)
    return np.stack(images), np.array(labels, np.uint8)


def read_notmnist(tree: Tree, wanted: str) -> dict[str, NDArray[np.uint8]]:
    """The Train and Test folders where there are such; else a fixed random tenth is the test part."""
    parts = {}
    for part in ("train", "test"):
        inside = [n for n in tree.names if part in [folder.lower() for folder in n.split("/")[:-1]]]
        parts[part] = class_folders(Tree(tree.where, inside, tree.read))
    both = class_folders(tree)
    missing = [letter for letter in LETTERS if not both.get(letter)]
    if missing:
        raise DataError(
            f"{tree.where} has no images under the folder{'s'[: len(missing) > 1]} {', '.join(missing)}. Give {wanted}."
        )
    if parts["train"] and parts["test"]:
        train, test = _read(tree, parts["train"]), _read(tree, parts["test"])
    else:
        images, labels = _read(tree, both)
        # RandomState: numpy promises that its numbers never change.
        order = np.random.RandomState(0).permutation(len(labels))
        held = (len(labels) + 9) // 10
        test = images[order[:held]], labels[order[:held]]
        train = images[order[held:]], labels[order[held:]]
    return {"train_images": train[0], "train_labels": train[1], "test_images": test[0], "test_labels": test[1]}
