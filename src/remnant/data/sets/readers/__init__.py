"""The original formats: each reader turns a tree of files into a set's arrays."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..sources import source
from .cifar import read_cifar10, read_cifar100
from .idx import read_idx
from .miniimagenet import read_miniimagenet
from .notmnist import read_notmnist
from .svhn import read_svhn
from .tiny_imagenet import read_tiny_imagenet
from .tree import Tree, open_tree

Reader = Callable[[Tree, str], dict[str, NDArray[np.uint8]]]

READERS: dict[str, Reader] = {
    "mnist": read_idx,
    "fashion_mnist": read_idx,
    "cifar10": read_cifar10,
    "cifar100": read_cifar100,
    "svhn": read_svhn,
    "notmnist": read_notmnist,
    "miniimagenet": read_miniimagenet,
    "tiny_imagenet": read_tiny_imagenet,
}


def read_original(name: str, path: Path) -> dict[str, NDArray[np.uint8]]:
    """The arrays of set `name` from its original files in `path` (a folder or an archive)."""
    entry = source(name)
    with open_tree(path) as tree:
        return READERS[name](tree, entry.wanted)
