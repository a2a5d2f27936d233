"""Image files, in one folder per class."""

import io
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from ...errors import DataError, MissingExtraError
from .tree import Pixels, Tree

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".ppm", ".pgm", ".tif", ".tiff")


class BrokenImageError(DataError):
    """An image file that cannot be read."""


def is_image(name: str) -> bool:
    # macOS leaves ._NAME files beside the real ones in archives.
    return name.lower().endswith(ENDINGS) and not name.rsplit("/", 1)[-1].startswith(".")


def decode(data: bytes, where: object, channels: int | None, size: tuple[int, int] | None = None) -> Pixels:
    """H×W (grey) or H×W×3, resized if a size (height, width) is given; `channels=None` keeps grey images grey."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("Reading image files needs pillow: pip install 'remnant[images]'.") from error
    try:
        with Image.open(io.BytesIO(data)) as image:
            if channels is None:
                channels = 1 if image.mode in ("1", "L", "LA", "I", "I;16", "F") else 3
            picture: Any = image.convert("L" if channels == 1 else "RGB")
            if size is not None and picture.size != (size[1], size[0]):
                picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            return np.asarray(picture, np.uint8)
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise BrokenImageError(f"{where} is not a readable image ({error}).") from error


def class_folders(names: Iterable[str], under: str = "") -> dict[str, list[str]]:
    """Class → its image files, for every folder below `under` that holds images.

    A folder called `images` belongs to the class above it (Tiny ImageNet).
    """
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        if name.startswith(under) and is_image(name):
            folders = name.removeprefix(under).split("/")[:-1]
            if len(folders) > 1 and folders[-1] == "images":
                folders.pop()
            if folders:
                found[folders[-1]].append(name)
    return dict(sorted(found.items()))


def read_classes(tree: Tree, classes: Iterable[list[str]], size: tuple[int, int]) -> tuple[Pixels, Pixels]:
    """The RGB images of the classes, given as lists of files, and their labels."""
    files = [(name, label) for label, names in enumerate(classes) for name in names]
    images = np.empty((len(files), *size, 3), np.uint8)
    for i, (name, _) in enumerate(files):
        images[i] = decode(tree.read(name), f"{tree.where}: '{name}'", 3, size)
    return images, np.array([label for _, label in files], np.uint8)
