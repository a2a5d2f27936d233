"""A stream from a folder of images: `taskNN/{train,test}/class/…`, and `valid` beside them if there is one."""

from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .errors import DataError
from .pixels import channels_first, normalise
from .seeding import shuffled_out
from .sets.readers.images import UNREADABLE, class_folders, decode, is_image
from .sets.readers.tree import Tree
from .stream import Head, Split, Stream, Task

Files = list[tuple[Path, int]]  # image, label


def from_folder(
    path: str | PathLike[str],
    *,
    head: Head = "multi",
    size: tuple[int, int] | None = None,
    valid: float = 0.0,
    name: str | None = None,
    seed: int = 0,
) -> Stream:
    """Tasks in the order of their folders' names, classes in the order of theirs; pixels from 0 to 1, read when asked for.

    All images must have one size (height, width) unless `size` is given, to which they are then brought. `valid` is the
    share of train held out where a task has no `valid` folder. In a single-head stream, folders of one name are one class.
    """
    root = Path(path).expanduser()
    folders = (
        sorted(p for p in root.glob("*") if p.is_dir() and p.name.lower().startswith("task")) if root.is_dir() else []
    )
    if not folders:
        raise DataError(f"{root} has no folders task01, task02, … with train/CLASS/ and test/CLASS/ of images in each.")
    found = [{part: _classes(folder / part) for part in ("train", "valid", "test")} for folder in folders]
    everything = sorted({name for task in found for name in task["train"]})
    first = next((files[0] for task in found for files in task["train"].values()), None)
    if first is None:
        raise DataError(f"{folders[0]}/train has no folders of images, one per class.")
    example = _read(first, None, size)
    channels = 1 if example.ndim == 2 else 3
    shape = (channels, example.shape[0], example.shape[1])
    tasks, sizes = [], []
    for number, (folder, parts) in enumerate(zip(folders, found, strict=True)):
        for part in ("train", "test"):
            if not parts[part]:
                raise DataError(f"{folder / part} has no folders of images, one per class.")
        own = sorted(parts["train"])
        for part in ("valid", "test"):
            strange = sorted(set(parts[part]) - set(own))
            if strange:
                raise DataError(f"{folder / part} has the class '{strange[0]}', which {folder / 'train'} has not.")
        numbers = {c: i for i, c in enumerate(everything if head == "single" else own)}
        files = {p: [(f, numbers[c]) for c, each in classes.items() for f in each] for p, classes in parts.items()}
        if not files["valid"]:
            train, held = shuffled_out(np.arange(len(files["train"])), valid, seed, number)
            files["valid"] = [files["train"][i] for i in held]
            files["train"] = [files["train"][i] for i in train]
        made = {part: _split(each, shape, size) for part, each in files.items()}
        labels = tuple(numbers[c] for c in own)
        tasks.append(Task(folder.name, len(own), made["train"], made["valid"], made["test"], labels))
        sizes.append(len(own))
    heads = (len(everything),) if head == "single" else tuple(sizes)
    return Stream(name or root.name, tuple(tasks), head, shape, heads, seed)


def _classes(folder: Path) -> dict[str, list[Path]]:
    names = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and is_image(p.name)]
    tree = Tree(folder, names, lambda name: (folder / name).read_bytes())
    return {c: [folder / name for name in files] for c, files in class_folders(tree).items()}


def _read(
    file: Path, channels: int | None, size: tuple[int, int] | None
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    try:
        return decode(file.read_bytes(), channels, size)
    except UNREADABLE as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{file} is not a readable image ({error}).") from error


def _split(files: Files, shape: tuple[int, int, int], size: tuple[int, int] | None) -> Split:
    def x(device: torch.device) -> Tensor:
        channels, height, width = shape
        images = np.empty((len(files), height, width, *((3,) if channels == 3 else ())), np.uint8)
        for i, (file, _) in enumerate(files):
            image = _read(file, channels, size)
            if image.shape[:2] != (height, width):
                raise DataError(
                    f"{file} is {image.shape[0]} × {image.shape[1]}, the first image {height} × {width}. "
                    f"Pass size=({height}, {width}) to bring all to one size."
                )
            images[i] = image
        return normalise(channels_first(images, device))

    return Split(len(files), x, lambda: torch.tensor([label for _, label in files], dtype=torch.int64))
