"""Image files and folders of them, one folder per class."""

import io
from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, MissingExtraError
from .tree import Tree

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".ppm", ".pgm", ".tif", ".tiff")
UNREADABLE = (OSError, SyntaxError, ValueError, EOFError)  # what pillow raises on a broken file


def is_image(name: str) -> bool:
    # macOS leaves ._NAME files beside the real ones in archives.
    return name.lower().endswith(ENDINGS) and not name.rsplit("/", 1)[-1].startswith(".")


def decode(data: bytes, channels: int | None, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """H×W (grey) or H×W×3, resized where a size (height, width) is given; `channels=None` keeps grey grey."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("Reading image files needs pillow: pip install 'remnant[images]'.") from error
    with Image.open(io.BytesIO(data)) as image:
        if channels is None:
            channels = 1 if image.mode in ("1", "L", "LA", "I", "I;16", "F") else 3
        picture: Any = image.convert("L" if channels == 1 else "RGB")
        if size is not None and picture.size != (size[1], size[0]):
            picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        return np.asarray(picture, np.uint8)


def class_folders(tree: Tree, under: str = "") -> dict[str, list[str]]:
    """Class name → its image files, for every folder directly holding images somewhere below `under`.

    A last folder called `images` belongs to the class above it (Tiny ImageNet).
    """
    found: dict[str, list[str]] = defaultdict(list)
    for name in tree.names:
        if name.startswith(under) and is_image(name):
            folders = name.removeprefix(under).split("/")[:-1]
            if len(folders) > 1 and folders[-1] == "images":
                folders.pop()
            if folders:
                found[folders[-1]].append(name)
    return dict(sorted(found.items()))


def read_images(tree: Tree, names: list[str], channels: int, size: tuple[int, int]) -> NDArray[np.uint8]:
    """The images, one array; a broken one is an error that names it."""
    shape = (len(names), *size) if channels == 1 else (len(names), *size, channels)
    images = np.empty(shape, np.uint8)
    for i, name in enumerate(names):
        try:
            images[i] = decode(tree.read(name), channels, size)
        except UNREADABLE as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{tree.where}: '{name}' is not a readable image ({error}).") from error
    return images
