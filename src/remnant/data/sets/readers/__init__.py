"""Readers of the original formats. Each turns a tree of files into the arrays of a dataset."""

from pathlib import Path

from ..sources import source
from .cifar import read_cifar10, read_cifar100
from .idx import read_idx
from .miniimagenet import read_miniimagenet
from .notmnist import read_notmnist
from .svhn import read_svhn
from .tiny_imagenet import read_tiny_imagenet
from .tree import Arrays, open_tree

READERS = {
    "mnist": read_idx,
    "fashion_mnist": read_idx,
    "cifar10": read_cifar10,
    "cifar100": read_cifar100,
    "svhn": read_svhn,
    "notmnist": read_notmnist,
    "miniimagenet": read_miniimagenet,
    "tiny_imagenet": read_tiny_imagenet,
}


def read_original(name: str, path: Path) -> Arrays:
    """The arrays of a dataset, from the folder or archive that holds its original files."""
    with open_tree(path) as tree:
        return READERS[name](tree, source(name).wanted)
