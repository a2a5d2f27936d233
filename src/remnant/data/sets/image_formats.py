"""Readers of datasets that come as image files: notMNIST, Tiny ImageNet and miniImageNet (which also comes as pickles)."""

import io
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ..errors import DataError, MissingExtraError
from .originals import Originals
from .pickles import as_array, read_pickle
from .sources import Arrays, Pixels

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".ppm", ".pgm", ".tif", ".tiff")
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "PPM", "TIFF")
MOST_PIXELS = 2**26  # of one image
LETTERS = "ABCDEFGHIJ"
MINI_CACHES = (
    ("mini-imagenet-cache-train.pkl",),
    ("mini-imagenet-cache-val.pkl", "mini-imagenet-cache-validation.pkl"),
    ("mini-imagenet-cache-test.pkl",),
)


class BrokenImageError(DataError):
    """An image file that cannot be read."""


def decode(data: bytes, where: object, channels: int | None, size: tuple[int, int] | None = None) -> Pixels:
    """H×W (grey) or H×W×3, resized if a size (height, width) is given; `channels=None` keeps grey images grey."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("Reading image files needs pillow: pip install pillow.") from error
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(f"{image.width} × {image.height} pixels are too many")
            if channels is None:
                channels = 1 if image.mode in ("1", "L", "LA", "I", "I;16", "F") else 3
            picture: Any = image.convert("L" if channels == 1 else "RGB")
            if size is not None and picture.size != (size[1], size[0]):
                picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            return np.asarray(picture, np.uint8)
    except Exception as error:  # pillow can raise nearly anything on damaged files
        raise BrokenImageError(f"{where} is not a readable image ({error}).") from error


def image_files(names: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """The image files among these paths, each with the folders that it lies in."""
    for name in names:
        *folders, file = name.split("/")
        if file.startswith(".") or not file.lower().endswith(ENDINGS):
            continue  # macOS leaves ._NAME files beside the real ones
        if len(folders) > 1 and folders[-1] == "images":
            folders.pop()  # Tiny ImageNet has CLASS/images
        yield name, folders


def class_folders(names: Iterable[str], under: str = "") -> dict[str, list[str]]:
    """Class → its image files, for every folder below `under` that holds images."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, folders in image_files(name.removeprefix(under) for name in names if name.startswith(under)):
        if folders:
            found[folders[-1]].append(under + name)
    return dict(sorted(found.items()))


def _read_classes(originals: Originals, classes: Iterable[list[str]], side: int) -> tuple[Pixels, Pixels]:
    """The RGB images of the classes, given as lists of files, and their labels."""
    files = [(name, label) for label, names in enumerate(classes) for name in names]
    originals.check_size(len(files) * side * side * 3)
    images = np.empty((len(files), side, side, 3), np.uint8)
    for i, (name, _) in enumerate(files):
        images[i] = decode(originals.read(name), f"{originals.path}: '{name}'", 3, (side, side))
    return images, np.array([label for _, label in files], np.uint8)


def read_notmnist(originals: Originals) -> Arrays:
    """Folders A … J, under Train and Test if there are such; otherwise a fixed random tenth is the test part."""
    names = originals.names
    letters = class_folders(names)
    if missing := [letter for letter in LETTERS if letter not in letters]:
        folders = f"folder{'s'[: len(missing) > 1]} {', '.join(missing)}"
        raise DataError(f"{originals.path} has no images under the {folders}. Give {originals.wanted}.")
    parts = [class_folders(n for n in names if part in n.lower().split("/")[:-1]) for part in ("train", "test")]
    if all(parts):
        train, test = (_read_letters(originals, folders) for folders in parts)
    else:
        images, labels = _read_letters(originals, letters)
        # RandomState, because numpy promises that its numbers never change.
        order = np.random.RandomState(0).permutation(len(labels))
        held = (len(labels) + 9) // 10
        test = images[order[:held]], labels[order[:held]]
        train = images[order[held:]], labels[order[held:]]
    return {"train_images": train[0], "train_labels": train[1], "test_images": test[0], "test_labels": test[1]}


def _read_letters(originals: Originals, folders: dict[str, list[str]]) -> tuple[Pixels, Pixels]:
    """The readable 28×28 images and their labels. The small edition has two broken files."""
    images, labels = [], []
    for name, label in ((name, label) for label, letter in enumerate(LETTERS) for name in folders.get(letter, ())):
        try:
            image = decode(originals.read(name), name, 1)
        except BrokenImageError:
            continue
        if image.shape == (28, 28):
            images.append(image)
            labels.append(label)
    return np.stack(images), np.array(labels, np.uint8)


def read_tiny_imagenet(originals: Originals) -> Arrays:
    """Images of train/CLASS/images and of val, which is the test part. Classes are numbered as in wnids.txt."""
    classes = originals.need("wnids.txt").decode().split()
    top = (originals.find("wnids.txt") or "").removesuffix("wnids.txt")
    train, test = class_folders(originals.names, f"{top}train/"), _tiny_val(originals, f"{top}val/")
    arrays: Arrays = {}
    for part, folder, found in (("train", "train", train), ("test", "val", test)):
        if missing := [name for name in classes if name not in found]:
            count = f"{missing[0]} ({len(missing)} such classes)"
            raise DataError(f"{originals.path}: {folder} has no images of {count}. Give {originals.wanted}.")
        images, labels = _read_classes(originals, [found[name] for name in classes], 64)
        arrays |= {f"{part}_images": images, f"{part}_labels": labels}
    return arrays


def _tiny_val(originals: Originals, under: str) -> dict[str, list[str]]:
    """Class → images by val_annotations.txt (FILE, CLASS, box), or by folder if they have been sorted already."""
    listing, present = f"{under}val_annotations.txt", set(originals.names)
    found: dict[str, list[str]] = defaultdict(list)
    for line in originals.read(listing).decode().splitlines() if listing in present else ():
        file, *fields = line.split("\t")
        if not fields:
            raise DataError(f"{originals.path}: {line!r:.60} in '{listing}' has no class. Give {originals.wanted}.")
        if f"{under}images/{file}" in present:
            found[fields[0]].append(f"{under}images/{file}")
    return found or class_folders(originals.names, under)


def read_miniimagenet(originals: Originals) -> Arrays:
    """One of three common forms: the few-shot caches, train.pkl and test.pkl, or a folder of images per class."""
    if originals.find(*MINI_CACHES[0]):
        classes: list[Pixels] = []
        for names in MINI_CACHES:  # 64 + 16 + 20 classes
            images, rows = _mini_pickle(originals, names, "image_data", "class_dict")
            chosen = [as_array(each) for each in rows.values()]
            if not np.array_equal(np.sort(np.concatenate(chosen)), np.arange(len(images))):
                raise DataError(f"{originals.path}: class_dict in {names[0]} should name every image once.")
            classes += [images[each] for each in chosen]
        return _five_sixths(classes)
    return _mini_pickles(originals) if originals.find("train.pkl") else _mini_folders(originals)


def _mini_pickle(originals: Originals, names: tuple[str, ...], images: str, other: str) -> tuple[Pixels, Any]:
    """The images in a pickle, and the other value that goes with them."""
    where = f"{originals.path}: {names[0]}"
    batch = read_pickle(originals.need(*names), where, images, other)
    pixels = as_array(batch[images])
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (84, 84, 3):
        raise DataError(f"{where}: images are {pixels.dtype} {pixels.shape}, not bytes of N × 84 × 84 × 3.")
    return pixels, batch[other]


def _mini_pickles(originals: Originals) -> Arrays:
    """train.pkl and test.pkl: dictionaries of `images` and `labels`, already divided 500 to 100 per class."""
    content = {part: _mini_pickle(originals, (f"{part}.pkl",), "images", "labels") for part in ("train", "test")}
    # Labels may be numbers or WordNet names; in both cases they count from 0 in sorted order.
    names = np.unique(as_array(content["train"][1]))
    arrays: Arrays = {}
    for part, (images, given) in content.items():
        labels = as_array(given).reshape(-1)
        if not np.isin(labels, names).all():
            raise DataError(
                f"{originals.path}: test.pkl has classes that train.pkl does not have: this is the few-shot split."
            )
        arrays |= {f"{part}_images": images, f"{part}_labels": np.searchsorted(names, labels).astype(np.uint8)}
    return arrays


def _mini_folders(originals: Originals) -> Arrays:
    """Divided by train/ and test/ if both hold all classes, otherwise within each class."""
    names = originals.names
    classes = class_folders(names)
    if len(classes) < 2:
        raise DataError(
            f"{originals.path} has neither the pickles nor a folder of images per class. Give {originals.wanted}."
        )
    parts = {part: class_folders(n for n in names if part in n.split("/")[:-1]) for part in ("train", "test")}
    if not parts["train"].keys() == parts["test"].keys() == classes.keys():
        return _five_sixths([_read_classes(originals, [files], 84)[0] for files in classes.values()])
    arrays = {}
    for part, folders in parts.items():
        arrays[f"{part}_images"], arrays[f"{part}_labels"] = _read_classes(originals, folders.values(), 84)
    return arrays


def _five_sixths(classes: list[Pixels]) -> Arrays:
    """The first five sixths of each class train (500 of 600), the rest test."""
    divided = [np.split(images, [len(images) * 5 // 6]) for images in classes]
    arrays = {}
    for part, chosen in zip(("train", "test"), zip(*divided, strict=True), strict=True):
        arrays[f"{part}_images"] = np.concatenate(chosen)
        arrays[f"{part}_labels"] = np.repeat(np.arange(len(classes), dtype=np.uint8), [len(each) for each in chosen])
    return arrays
