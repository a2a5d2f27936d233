"""notMNIST: folders A … J of 28×28 pictures. The small edition has two broken files, which are left out."""

import numpy as np

from ...errors import DataError
from .images import BrokenImageError, class_folders, decode
from .tree import Arrays, Pixels, Tree

LETTERS = "ABCDEFGHIJ"


def read_notmnist(tree: Tree, wanted: str) -> Arrays:
    """The Train and Test folders if there are any; otherwise a fixed random tenth is the test part."""
    letters = class_folders(tree.names)
    missing = [letter for letter in LETTERS if not letters.get(letter)]
    if missing:
        raise DataError(
            f"{tree.where} has no images under the folder{'s'[: len(missing) > 1]} {', '.join(missing)}. Give {wanted}."
        )
    parts = [class_folders(n for n in tree.names if part in n.lower().split("/")[:-1]) for part in ("train", "test")]
    if all(parts):
        train, test = (_read(tree, folders) for folders in parts)
    else:
        images, labels = _read(tree, letters)
        # RandomState, because numpy promises that its numbers never change.
        order = np.random.RandomState(0).permutation(len(labels))
        held = (len(labels) + 9) // 10
        test = images[order[:held]], labels[order[:held]]
        train = images[order[held:]], labels[order[held:]]
    return {"train_images": train[0], "train_labels": train[1], "test_images": test[0], "test_labels": test[1]}


def _read(tree: Tree, folders: dict[str, list[str]]) -> tuple[Pixels, Pixels]:
    images, labels = [], []
    for label, letter in enumerate(LETTERS):
        for name in folders.get(letter, []):
            try:
                image = decode(tree.read(name), name, 1)
            except BrokenImageError:
                continue
            if image.shape == (28, 28):
                images.append(image)
                labels.append(label)
    return np.stack(images), np.array(labels, np.uint8)
